"""What the commands share: flags, config files, help texts, and errors as one line."""

import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from transformer_lab.data.fetch import cache_dir
from transformer_lab.errors import LESS_MEMORY, LabError, line_of
from transformer_lab.kinds import check_shipped, shipped
from transformer_lab.terminal import Waiting
from transformer_lab.training import peers, runs
from transformer_lab.training.config import default_config, from_stored
from transformer_lab.training.places import place, remote
from transformer_lab.training.programs import count_programs
from transformer_lab.training.signals import SIGNALS, Stopped
from transformer_lab.training.startup import order_simulated, set_flags

flags.DEFINE_string(
    "peers",
    "",
    'The other processes of one run: "auto" asks SLURM, MPI, Kubernetes or a TPU pod; or '
    "HOST:PORT,COUNT,INDEX of the first process, how many there are, and which is this.",
)
flags.DEFINE_integer(
    "peer_timeout", 60, "Seconds within which a lost process is noticed.", lower_bound=5
)
flags.DEFINE_bool("fast_xla", False, "XLA's flags that hide collectives behind computation.")
COMMON = ("fast_xla", "peer_timeout", "peers")  # flags that every command has
HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
NONE = re.compile(r"--?config\.([\w.]+)=None")


def run(command: ModuleType, argv: list[str]) -> None:
    """Runs a command: its `define()` declares flags, its `main(arguments)` does the work.

    Arguments that are no flags are refused, unless the command has `WORDS = True`. `argv` begins
    with the command's name.
    """
    words = getattr(command, "WORDS", False)

    def parse(argv):
        if HELP & set(argv):
            print(help_of(command))
            sys.exit(0)
        try:
            _refuse_bare_overrides(argv)
            _find_config(argv, getattr(command, "CONFIG_FIRST", False))
            declare(command)
            left = flags.FLAGS([argument for argument in argv if not NONE.fullmatch(argument)])
            if left[1:] and not words:
                raise LabError(_left_over(left[1], argv))
            if "config" in flags.FLAGS and isinstance(flags.FLAGS["config"].value, ConfigDict):
                settle(flags.FLAGS["config"].value, argv)
            return left
        except LabError as error:
            _fail(error)
        except Exception as error:  # a mistake in a config file can be of any kind
            _fail(_explain(error))

    def guarded(argv):
        try:
            _setup()
            with SIGNALS.ending():
                code = command.main(argv[1:])
            peers.finish()
            return code
        except Stopped:  # all processes are here
            peers.finish()
            raise
        except SystemExit as error:
            peers.leave(error.code, "it was told to stop")
            raise
        except LabError as error:
            return _fail(error, error)
        except KeyboardInterrupt:
            return _fail("interrupted")
        except BrokenPipeError:  # the reader of our output has gone: `__main__` ends quietly
            raise
        except re.error as error:
            return _fail(f"the regular expression {error.pattern!r} is wrong: {error}")
        except OSError as error:  # a full disk, a directory without permission
            return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
        except Exception as error:
            if line := out_of_memory(error):
                return _fail(line, error)
            text = traceback.format_exc()
            peers.leave(1, f"{type(error).__name__}: {error}", error, text)
            raise

    SIGNALS.catch()
    logging.set_verbosity(logging.WARNING)
    app.run(guarded, argv, flags_parser=parse)


def declare(command: ModuleType) -> list[str]:
    """Declares a command's flags after removing an earlier command's; returns their names."""
    for name in list(flags.FLAGS):
        module = str(flags.FLAGS.find_module_defining_flag(name))
        ours = module.startswith(("transformer_lab", "ml_collections")) or name[:7] == "config."
        if ours and name not in COMMON:
            delattr(flags.FLAGS, name)
    before = set(flags.FLAGS)
    command.define()
    return sorted(set(flags.FLAGS) - before)


def help_of(command: ModuleType) -> str:
    """The help text of a command: its docstring, then its flags with their defaults."""
    lines = [command.__doc__.strip(), "", "flags:"]
    for name in [*declare(command), *COMMON]:
        flag = flags.FLAGS[name]
        default = "" if flag.default in (None, "", []) else f" (default: {flag.default})"
        lines.append(f"  --{name}: {flag.help}{default}")
    return "\n".join(lines)


def out_of_memory(error: Exception) -> str:
    """One line of advice if the error says that memory ran out; "" for all other errors."""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return f"out of memory ({text or 'on the host'}): {LESS_MEMORY}"
    return ""


def run_flags() -> None:
    """Declares the flags that open a trained run: --workdir, --average, --init_from, and
    --config.KEY=VALUE to change its stored config."""
    flags.DEFINE_string("workdir", "", "Directory of the trained run.")
    text = "How many checkpoints to average; 0: as the config says."
    flags.DEFINE_integer("average", 0, text, lower_bound=0)
    text = "Where an adapted run's base lies now, if it was moved."
    flags.DEFINE_string("init_from", "", text)
    if HELP & set(sys.argv):
        flags.DEFINE_string("config", None, "--config.KEY=VALUE changes a key of the run's config.")
        return
    if not (workdir := _flag_value("workdir")):
        raise LabError("--workdir=DIR is missing: the directory of a trained run")
    config = from_stored(runs.stored_config(place(workdir)))
    config_flags.DEFINE_config_dict("config", config, lock_config=True)


def run_or_config() -> None:
    """Declares the flags of `run_flags` if the command line has --workdir, else --config=FILE."""
    if _flag_value("workdir"):
        run_flags()
    else:
        config_file()
        flags.DEFINE_string("workdir", "", "A run, whose config is taken in place of --config.")


def config_file() -> None:
    """Declares --config=FILE[:ARG] and the --config.KEY=VALUE that change it."""
    if path := _flag_value("config").partition(":")[0]:
        check_shipped("configs", path)
    text = "The run's config FILE, or FILE:ARGUMENT; --config.KEY=VALUE changes any key of it."
    config_flags.DEFINE_config_file("config", None, text, lock_config=True)


def get_config() -> ConfigDict:
    """The config that the flags name. Raises: LabError if there is none or it cannot be read."""
    config = flags.FLAGS.config
    if config is None:
        raise LabError("--config=FILE is missing, for example --config=configs/smoke.py")
    if not isinstance(config, ConfigDict):  # ml_collections puts a file that it cannot load off
        path = _flag_value("config").split(":")[0]
        raise LabError(f"--config={path} cannot be read: is the path right?")
    return config


def open_run(ability: type = object, does: str = "", instead: str = "") -> tuple[Any, Any]:
    """The (trainer, parameters) of the run in --workdir, opened as the flags of `run_flags` say.

    Raises: LabError if its task lacks the ability, a class or a protocol of `tasks.abilities`; the
    line says what such a run does not do, and what to use instead.
    """
    args, workdir = flags.FLAGS, get_workdir()
    with Waiting(f"opens {workdir}"):
        trainer, params = runs.open_run(get_config(), workdir, args.average, args.init_from)
    if not isinstance(trainer.task, ability):
        kind = get_config().task.kind
        raise LabError(f"a run of {kind} does not {does}" + (f": {instead}" if instead else ""))
    return trainer, params


def get_workdir(what: str = "") -> Path:
    """The --workdir. Raises: LabError without it, or if it is a bucket and must hold `what`."""
    if not flags.FLAGS.workdir:
        raise LabError("--workdir=DIR is missing: where the run lies")
    workdir = place(flags.FLAGS.workdir)
    if what and remote(workdir):
        raise LabError(f"{workdir} cannot hold {what}: give a local --workdir")
    return workdir


def _flag_value(name: str) -> str:
    for i, argument in enumerate(sys.argv[1:], 1):
        if match := re.fullmatch(rf"--?{name}=(.*)", argument, re.DOTALL):
            return match[1]
        if re.fullmatch(rf"--?{name}", argument) and i + 1 < len(sys.argv):
            return sys.argv[i + 1]
    return ""


def _refuse_bare_overrides(argv: list[str]) -> None:
    for argument in argv[1:]:
        if re.match(r"config(\.[\w.]+)?=", argument):
            raise LabError(f"{argument} has no dashes: write --{argument}")


def _find_config(argv: list[str], may_lead: bool) -> None:
    """Puts a shipped config's path in place of its bare name, as of --config=smoke:ARGUMENT.

    Where the first word that is no flag may be the config, `COMMAND smoke` is --config=smoke."""
    if may_lead and not _flag_value("config"):
        for i, word in enumerate(argv[1:], 1):
            # After a flag without "=" a word is that flag's value.
            if re.match("[^-=][^=]*$", word) and not re.match("-[^=]*$", argv[i - 1]):
                argv[i] = f"--config={word}"
                break
    for i, argument in enumerate(argv[1:], 1):
        flag, equals, value = argument.partition("=")
        bare = flag in ("--config", "-config")
        if bare and (equals or i + 1 < len(argv)):
            file, *rest = (value if equals else argv[i + 1]).split(":", 1)
            path = ":".join([shipped("configs", file), *rest])
            argv[i if equals else i + 1] = f"{flag}={path}" if equals else path


def _left_over(word: str, argv: list[str]) -> str:
    """The refusal of an argument that is no flag, with what to write instead."""
    before = argv[argv.index(word) - 1]
    if before.startswith("-") and "=" not in before:  # a switch, which takes no word after it
        return f'"{word}" is left over: write {before}={word}'
    return f'"{word}" is no flag: write --NAME=VALUE, with a VALUE of several words in quotes'


def input_lines() -> Iterator[str]:
    """The lines of standard input, without line ends, as they come; invalid UTF-8 becomes U+FFFD.
    Raises: LabError where standard input is closed or cannot be read."""
    try:
        if sys.stdin is None or sys.stdin.closed:
            raise LabError("standard input is closed: give texts on it, or as arguments")
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except (OSError, ValueError) as error:  # ValueError: its descriptor is not open
        raise LabError(f"standard input cannot be read: {error}") from error


def _explain(error: Exception) -> str:
    """One line for an error raised while flags are parsed or config files are executed."""
    text = str(error).strip("'\"") if isinstance(error, KeyError) else getattr(error, "msg", error)
    text = " ".join(str(text).split())
    if isinstance(error, flags.IllegalFlagValueError):
        return _mistyped(text)
    line = line_of(error, _flag_value("config").partition(":")[0])
    if isinstance(error, AttributeError | KeyError) and not line:
        return _unknown_key(text.replace("\\n", " "))
    return f"{line}{text}"


def _mistyped(text: str) -> str:
    """A line with the flag, the value and the type that it must have; one about bounds stays."""
    name, value, why = re.fullmatch(r"flag --([\w.]+)=(.*?): (.*)", text).groups()
    if not name.startswith("config.") and not why.startswith(("invalid", "could not")):
        return text
    if "as a ConfigDict" in why:
        return f"--{name}={value}: {name} is a section of keys, write --{name}.KEY=VALUE"
    kind = flags.FLAGS[name].flag_type()
    return f"--{name}={value}: {name} is of type {kind}, and {value!r} is not"


def _unknown_key(text: str) -> str:
    """A line with the --config.KEY that the error is about, and the key nearest to it."""
    keys = [m[1] for a in sys.argv[1:] if (m := re.match(r"--?(?:no)?config\.([\w.]+)", a))]
    words = set(re.findall(r"\w+", text.split("Did you mean")[0]))
    key = next((key for key in keys if words & set(key.split("."))), None)
    if key is None:
        return text
    hint = re.search(r'Did you mean "(\w+)"', text)
    return f"config.{key} is not a key" + (f' (did you mean "{hint[1]}"?)' if hint else "")


def settle(config: ConfigDict, argv: list[str]) -> None:
    """Applies --config.KEY=None, which the flags of numbers cannot parse; drops the config's
    epochs, with a line on standard error, if --config.steps alone is given; and gives held-out
    splits of the user's own files their default size, for the config's is for its own source."""
    for argument in argv:
        if match := NONE.fullmatch(argument):
            config.update_from_flattened_dict({match[1]: None})
    told = {m[1] for a in argv if (m := re.match(r"--?config\.([\w.]+)", a))}
    if told & {"steps", "epochs"} == {"steps"} and config.get("epochs") is not None:
        line = f"--config.steps={config.steps} takes the place of config.epochs = {config.epochs}"
        print(line, file=sys.stderr)
        config.epochs = None
    if "data.source" in told and config.get("data", {}).get("source") == "files":
        usual = default_config(config.model.kind, config.task.kind).data
        for name in {"validation_size", "test_size"} & set(usual):
            if f"data.{name}" not in told:
                config.data[name] = usual[name]


def _fail(message: object, error: Exception | None = None) -> None:
    message = str(message).replace("\n", "\\n")  # a file's name may hold it
    peers.leave(2, message, error, f"error: {message}\n")
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def _setup() -> None:
    """Joins the other processes of the run, if any, and sets up the cache of compiled programs."""
    order_simulated()
    if flags.FLAGS.fast_xla:
        set_flags()
    if flags.FLAGS.peers:
        peers.join(flags.FLAGS.peers, flags.FLAGS.peer_timeout)
    count_programs()
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
