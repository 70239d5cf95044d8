"""Hugging Face's generation settings and special tokens, to and from ours."""

from dataclasses import dataclass
from typing import Any

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError
from transformer_lab.pretrained.hub import CONFIG, GENERATION, HubDirectory
from transformer_lab.pretrained.keys import Settings


@dataclass(frozen=True)
class SpecialIds:
    """Tokens that generation needs: padding, end, and what the decoder starts from."""

    pad: int
    eos: int
    start: int


SPECIAL = {"pad": "pad_token_id", "eos": "eos_token_id", "start": "decoder_start_token_id"}
EARLY_STOPPING = {False: "heuristic", True: "first", "never": "exact"}  # theirs -> ours
DEFAULT_NEW_TOKENS = 20

UNDERSTOOD = [
    "bad_words_ids",
    "early_stopping",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "num_beams",
    "suppress_tokens",
]

# They choose no token: what is returned and cached, and what sampling alone reads.
IRRELEVANT = [
    "_commit_hash",
    "_from_model_config",
    "assistant_confidence_threshold",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "disable_compile",
    "epsilon_cutoff",
    "eta_cutoff",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "min_p",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "return_dict_in_generate",
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "transformers_version",
    "typical_p",
    "use_cache",
]

# Values under which they choose no token; null always is one.
NEUTRAL = {
    "assistant_early_exit": (),
    "begin_suppress_tokens": ([],),
    "constraints": (),
    "diversity_penalty": (0.0,),
    "do_sample": (False,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "force_bos_token_to_be_generated": (False,),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0.0,),
    "prompt_lookup_num_tokens": (),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "repetition_penalty": (1.0,),
    "sequence_bias": ({}, []),
    "stop_strings": (),
    "token_healing": (False,),
    "use_mtp": (False,),
    "watermarking_config": (),
}
GENERATION_KEYS = frozenset([*UNDERSTOOD, *IRRELEVANT, *NEUTRAL, *SPECIAL.values()])


def read_generation(
    directory: HubDirectory, vocab_size: int, max_length: int
) -> tuple[DecodeConfig, SpecialIds]:
    """The search that their `generate` would run.

    Without generation_config.json the settings stand in config.json, as older writers left them.
    """
    file, values = GENERATION, directory.generation
    if values is None:
        known = GENERATION_KEYS & directory.config.keys()
        file, values = CONFIG, {name: directory.config[name] for name in known}
    settings = Settings(
        {name: value for name, value in values.items() if value is not None},
        str(directory.path / file),
    )
    settings.ignore(IRRELEVANT)
    settings.fix(NEUTRAL)
    special = _special_ids(settings, directory.config, vocab_size)
    early_stopping = settings.raw("early_stopping", False)
    if not isinstance(early_stopping, bool | str) or early_stopping not in EARLY_STOPPING:
        raise settings.error("early_stopping", 'only false, true and "never" are')
    decode = DecodeConfig(
        beam_size=settings.integer("num_beams", 1),
        length_penalty="power",
        alpha=settings.number("length_penalty", 1.0),
        early_stopping=EARLY_STOPPING[early_stopping],
        max_new_tokens=_new_tokens(settings, max_length),
        banned_tokens=_banned_tokens(settings, special.eos, vocab_size),
    )
    settings.finish()
    return decode, special


def _special_ids(settings: Settings, config: dict[str, Any], vocab_size: int) -> SpecialIds:
    found = {}
    for ours, theirs in SPECIAL.items():
        value = settings.raw(theirs, config.get(theirs))
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        if ours == "pad" and value is None:
            value = settings.raw("eos_token_id", config.get("eos_token_id"))
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            raise LabError(
                f"{settings.file}: {theirs} = {value} must be one token of 0..{vocab_size - 1}"
            )
        found[ours] = value
    return SpecialIds(**found)


def _new_tokens(settings: Settings, max_length: int) -> int:
    """max_new_tokens, else max_length less the start token, else 20 as far as there is room."""
    new = settings.integer("max_new_tokens", None)
    total = settings.integer("max_length", None, least=2)
    if new is None:
        new = min(DEFAULT_NEW_TOKENS, max_length - 1) if total is None else total - 1
    return new


def _banned_tokens(settings: Settings, eos: int, vocab_size: int) -> tuple[int, ...]:
    """Tokens never generated; a "bad word" that is the end token alone has no effect there."""
    words = settings.raw("bad_words_ids", [])
    if not isinstance(words, list) or not all(isinstance(w, list) and len(w) == 1 for w in words):
        raise settings.error("bad_words_ids", "only words of one token are")
    suppressed = settings.raw("suppress_tokens", [])
    if not isinstance(suppressed, list):
        raise settings.error("suppress_tokens", "it must be a list of tokens")
    banned = [*suppressed, *(word[0] for word in words if word[0] != eos)]
    for token in banned:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise LabError(f"{settings.file}: the banned token {token} is not in the vocabulary")
    return tuple(sorted(set(banned)))


def write_generation(special: SpecialIds, decode: DecodeConfig | None = None) -> dict[str, Any]:
    """Their settings of our search; without one, the special tokens alone."""
    values = {theirs: getattr(special, ours) for ours, theirs in SPECIAL.items()}
    if decode is None:
        return values
    if decode.length_penalty != "power":
        raise LabError(
            f'decode.length_penalty = "{decode.length_penalty}" has no place in {GENERATION}: '
            'it needs "power"'
        )
    early_stopping = {ours: theirs for theirs, ours in EARLY_STOPPING.items()}
    return values | {
        "num_beams": decode.beam_size,
        "length_penalty": decode.alpha,
        "early_stopping": early_stopping[decode.early_stopping],
        "max_new_tokens": decode.max_new_tokens,
        "bad_words_ids": [[token] for token in decode.banned_tokens] or None,
    }
