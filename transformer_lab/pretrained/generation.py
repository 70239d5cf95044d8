"""Converts Hugging Face's generation settings and special tokens to ours and back."""

from dataclasses import dataclass
from typing import Any

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError, fits
from transformer_lab.pretrained.hub import CONFIG, GENERATION, HubDirectory
from transformer_lab.pretrained.keys import UNSET, Settings, words

SPECIAL = {"pad": "pad_token_id", "eos": "eos_token_id", "start": "decoder_start_token_id"}
DECODER_SPECIAL = SPECIAL | {"start": "bos_token_id"}  # for a model without an encoder
NO_TOKEN = -1  # for a special token that the model lacks
EARLY_STOPPING = {False: "heuristic", True: "first", "never": "exact"}  # theirs -> ours
DEFAULT_NEW_TOKENS = 20

UNDERSTOOD = words("""
    alignment_heads bad_words_ids begin_suppress_tokens do_sample early_stopping forced_bos_token_id
    forced_eos_token_id max_length max_new_tokens min_length min_new_tokens stop_strings
    suppress_tokens
""")

# Keys that affect no token: what is returned or cached, settings of a draft model.
IRRELEVANT = words("""
    _commit_hash _from_model_config assistant_confidence_threshold assistant_lookbehind
    bos_token_id cache_config cache_implementation compile_config disable_compile is_assistant
    low_memory max_cache_len max_matching_ngram_size num_assistant_tokens
    num_assistant_tokens_schedule output_attentions output_hidden_states output_logits
    output_scores prefill_chunk_size return_dict_in_generate target_lookbehind transformers_version
    use_cache
""")

# Theirs -> (ours, default). A whole number must be at least its default (at most 1).
SETTINGS = {
    "num_beams": ("beam_size", 1),
    "num_return_sequences": ("n_best", 1),
    "length_penalty": ("alpha", 1.0),
    "renormalize_logits": ("renormalize", False),
    "no_repeat_ngram_size": ("no_repeat_ngram", 0),
    "repetition_penalty": ("repetition_penalty", 1.0),
}
# Read by sampling only; keys of the second table must have one of these values.
SAMPLED = {"temperature": ("temperature", 1.0), "top_k": ("top_k", 50), "top_p": ("top_p", 1.0)}
SAMPLING_NEUTRAL = {
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "min_p": (0.0,),
    "top_h": UNSET,
    "typical_p": (1.0,),
}

# Values with which these keys affect no token; null is always one of them.
NEUTRAL = {
    "assistant_early_exit": UNSET,
    "constraints": UNSET,
    "diversity_penalty": (0.0,),
    "dola_layers": UNSET,
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": UNSET,
    "force_bos_token_to_be_generated": (False,),
    "force_words_ids": UNSET,
    "guidance_scale": (1.0,),
    "max_time": UNSET,
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "prompt_lookup_num_tokens": UNSET,
    "remove_invalid_values": (False,),
    "sequence_bias": ({}, []),
    "token_healing": (False,),
    "use_mtp": (False,),
    "watermarking_config": UNSET,
}
GENERATION_KEYS = (
    UNDERSTOOD
    | IRRELEVANT
    | frozenset([*SETTINGS, *SAMPLED, *SAMPLING_NEUTRAL, *NEUTRAL, *SPECIAL.values()])
)


@dataclass(frozen=True)
class SpecialIds:
    """The token ids that generation needs: padding, end, and the first that a decoder reads.

    A model without an encoder may lack each of them, which NO_TOKEN marks."""

    pad: int
    eos: int
    start: int


def special_ids(values: dict[str, Any], pad: int) -> SpecialIds:
    """The special ids of a model that does not generate; `pad` is the default padding id."""
    found = {name: values.get(key, NO_TOKEN) for name, key in DECODER_SPECIAL.items()}
    found["pad"] = values.get("pad_token_id", pad)
    known = {name: i if type(i) is int and i >= 0 else NO_TOKEN for name, i in found.items()}
    return SpecialIds(**known)


def read_generation(
    directory: HubDirectory,
    vocab_size: int,
    max_length: int,
    decoder_only: bool = False,
    notes: list[str] | None = None,
) -> tuple[DecodeConfig, SpecialIds]:
    """The decoding settings and special ids with which Hugging Face's `generate` would run.

    Older files keep them in config.json instead of generation_config.json. Settings that we cannot
    express are left out, and a line added to `notes` names them.

    Raises: LabError for a value that is invalid in Hugging Face's code too."""
    file, values = GENERATION, directory.generation
    if values is None:
        known = GENERATION_KEYS & directory.config.keys()
        file, values = CONFIG, {name: directory.config[name] for name in known}
    values = {name: value for name, value in values.items() if value is not None}
    settings = Settings(values, str(directory.path / file))
    settings.ignore(IRRELEVANT)
    beams = settings.integer("num_beams", 1)
    drawn = settings.flag("do_sample", False)
    samples = drawn and decoder_only and beams == 1
    neutral = NEUTRAL | (SAMPLING_NEUTRAL if samples else {})
    lost = {"do_sample"} if drawn and not samples else set()
    lost |= {key for key, valid in neutral.items() if settings.raw(key) not in (None, *valid)}
    settings.ignore([*SAMPLED, *SAMPLING_NEUTRAL])
    lost |= _misfits(settings, directory.config, decoder_only)
    special, ends = _special_ids(settings, directory.config, vocab_size, decoder_only)
    readers = {bool: settings.flag, float: settings.number}
    readers[int] = lambda name, default: settings.integer(name, default, min(default, 1))
    table = SETTINGS | (SAMPLED if samples else {})
    plain = {ours: readers[type(value)](key, value) for key, (ours, value) in table.items()}
    first = settings.integer("forced_bos_token_id", None, least=0)
    if first is not None and (decoder_only or first >= vocab_size):
        raise settings.error("forced_bos_token_id", "only a token of an encoder-decoder is")
    forced = settings.raw("forced_eos_token_id")
    if forced not in (None, special.eos, [special.eos]):
        raise settings.error("forced_eos_token_id", f"only the end token {special.eos} is")
    stop = settings.raw("stop_strings", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise settings.error("stop_strings", "it must be a list of texts")
    heads = settings.raw("alignment_heads", [])
    if not fits(heads, list[list[int]]):
        raise settings.error("alignment_heads", "it must be pairs of a layer and a head")
    # min_length counts the start token, min_new_tokens does not.
    least = settings.integer("min_length", 0, least=0) - 1
    decode = DecodeConfig(
        **plain,
        length_penalty="power",
        early_stopping=settings.choice("early_stopping", False, EARLY_STOPPING),
        max_new_tokens=_new_tokens(settings, max_length),
        min_new_tokens=max(settings.integer("min_new_tokens", 0, least=0), least),
        banned_tokens=_banned_tokens(settings, special.eos, vocab_size),
        first_banned_tokens=_first_banned(settings, vocab_size),
        end_tokens=ends,
        alignment_heads=tuple(map(tuple, heads)),
        first_token=first,
        force_eos=forced is not None,
        stop=tuple(stop),
    )
    if lost := lost | settings.left:
        shown = Settings(values, settings.file).show(lost)
        notes = [] if notes is None else notes
        notes.append(f"{settings.file}: not imported, generation does without: {shown}")
    return decode, special


def _misfits(settings: Settings, config: dict[str, Any], decoder_only: bool) -> set[str]:
    """Removes the settings that our search cannot express, and returns their names."""
    lost, values = set(), settings.values
    several = values.get("bad_words_ids")
    if isinstance(several, list) and any(isinstance(w, list) and len(w) != 1 for w in several):
        lost.add("bad_words_ids")
    end = values.get("eos_token_id", config.get("eos_token_id"))
    ends = end if isinstance(end, list) else [end]
    forced = values.get("forced_eos_token_id")
    if forced not in (None, *ends) and forced != ends[:1]:
        lost.add("forced_eos_token_id")
    if decoder_only:  # their min_length counts the prompt, ours does not
        lost |= {name for name in ("forced_bos_token_id", "min_length") if values.get(name)}
    else:
        lost |= {"stop_strings"} & values.keys()
    for name in lost:
        settings.left.discard(name)
        if name == "bad_words_ids":
            values[name] = [w for w in several if not isinstance(w, list) or len(w) == 1]
        else:
            values.pop(name)
    return lost


def _special_ids(
    settings: Settings, config: dict[str, Any], vocab_size: int, decoder_only: bool
) -> tuple[SpecialIds, tuple[int, ...]]:
    """The special ids of the generation settings, else of the model's, and several end tokens.

    A decoder-only model may lack any of them, or name ids outside of its vocabulary, which count as
    missing. It may have several end tokens, as chat models do: the first is its `eos`."""
    keys = DECODER_SPECIAL if decoder_only else SPECIAL
    found, ends = {}, ()
    for name in ("eos", "start", "pad"):
        value = settings.raw(keys[name], config.get(keys[name]))
        if name == "pad" and value is None:
            value = found["eos"]
        several = decoder_only and name == "eos" and isinstance(value, list) and len(value) > 1
        if several and all(type(v) is int and 0 <= v < vocab_size for v in value):
            value, ends = value[:1], tuple(value)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
        if not known and not (decoder_only and (value is None or isinstance(value, int))):
            raise LabError(
                f"{settings.file}: {keys[name]} = {value} must be one of the tokens "
                f"0..{vocab_size - 1}"
            )
        found[name] = value if known else NO_TOKEN
    return SpecialIds(**found), ends


def _new_tokens(settings: Settings, max_length: int) -> int:
    """max_new_tokens, else max_length without the start token, else 20; at most `max_length`."""
    new = settings.integer("max_new_tokens", None)
    total = settings.integer("max_length", None, least=2)
    if new is not None:
        return min(new, max_length)
    if total is not None:
        return min(total - 1, max_length)
    return max(1, min(DEFAULT_NEW_TOKENS, max_length - 1))


def _banned_tokens(settings: Settings, eos: int, vocab_size: int) -> tuple[int, ...]:
    """The ids never generated; a bad word that is only the end token is ignored, as it is there."""
    bad_words = settings.raw("bad_words_ids", [])
    if not isinstance(bad_words, list) or not all(
        isinstance(word, list) and len(word) == 1 for word in bad_words
    ):
        raise settings.error("bad_words_ids", "only words of one token are")
    suppressed = _list_of_tokens(settings, "suppress_tokens")
    banned = [*suppressed, *(word[0] for word in bad_words if word[0] != eos)]
    for token in banned:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise LabError(
                f"{settings.file}: the banned token {token} is not one of 0..{vocab_size - 1}"
            )
    return tuple(sorted(set(banned)))


def _first_banned(settings: Settings, vocab_size: int) -> tuple[int, ...]:
    """The ids that may not come first, without those outside of the vocabulary."""
    tokens = _list_of_tokens(settings, "begin_suppress_tokens")
    return tuple(sorted({token for token in tokens if 0 <= token < vocab_size}))


def _list_of_tokens(settings: Settings, name: str) -> list[int]:
    value = settings.raw(name, [])
    if not fits(value, list[int]):
        raise settings.error(name, "it must be a list of tokens")
    return value


def write_generation(
    special: SpecialIds,
    decode: DecodeConfig | None,
    max_length: int,
    decoder_only: bool = False,
) -> dict[str, Any]:
    """Hugging Face's generation settings; only the special tokens if `decode` is None."""
    keys = DECODER_SPECIAL if decoder_only else SPECIAL
    values = {key: getattr(special, name) for name, key in keys.items()}
    values = {key: None if value == NO_TOKEN else value for key, value in values.items()}
    if decode is None:
        return values
    if decode.length_penalty != "power" and decode.beam_size > 1 and decode.alpha:
        raise LabError(
            f'decode.length_penalty = "{decode.length_penalty}" has no place in {GENERATION}: '
            'set it to "power", or decode.alpha to 0'
        )
    table = SETTINGS | (SAMPLED if decode.temperature else {})
    values |= {key: getattr(decode, ours) for key, (ours, _) in table.items()}
    if decode.length_penalty != "power":
        values["length_penalty"] = 0.0
    theirs = {ours: theirs for theirs, ours in EARLY_STOPPING.items()}
    values["early_stopping"] = theirs[decode.early_stopping]
    limit, least = decode.max_new_tokens, decode.min_new_tokens
    ends = list(dict.fromkeys([special.eos, *decode.end_tokens])) if decode.end_tokens else None
    more = {
        "do_sample": decode.temperature > 0,
        # max_length would count a prompt. If our limit depends on the source, which theirs cannot,
        # the model's own limit is written.
        "max_new_tokens": limit if decoder_only else 0,
        "max_length": 0 if decoder_only else 1 + (limit or max_length - 1),
        "min_new_tokens": least if decoder_only else 0,
        "min_length": 1 + least if least and not decoder_only else 0,
        "begin_suppress_tokens": list(decode.first_banned_tokens),
        "bad_words_ids": [[token] for token in decode.banned_tokens],
        "alignment_heads": [*map(list, decode.alignment_heads)],
        "eos_token_id": ends,
        "stop_strings": list(decode.stop),
    }
    values |= {key: value for key, value in more.items() if value}
    if decode.first_token is not None:
        values["forced_bos_token_id"] = decode.first_token
    if decode.force_eos:
        values["forced_eos_token_id"] = special.eos
    return values
