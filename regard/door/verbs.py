"""What a model can do, by its family and what it was trained for."""

from __future__ import annotations

from regard.bundle import read_config
from regard.config import EncoderConfig, LanguageModelConfig, ModelConfig, RnnConfig, Seq2SeqConfig
from regard.errors import RegardError
from regard.shipped import shipped

TRAINED_AS = {"translate": "translate", "generate": "lm", "classify": "classify", "fill": "mlm", "embed": "mlm or classify"}


def verbs_of(config: ModelConfig) -> tuple[str, ...]:
    """What a model of such a config can do."""
    match config:
        case Seq2SeqConfig() | RnnConfig():
            return ("translate", "score", "evaluate")
        case LanguageModelConfig(task="translate"):  # pairs in one stack: it has never gone on from a prompt
            return ("translate", "score", "evaluate")
        case LanguageModelConfig():
            return ("generate", "score", "evaluate")
        case EncoderConfig():
            heads = {"classify": bool(config.labels), "fill": config.masked_words}
            return (*(verb for verb, there in heads.items() if there), "embed", *(("evaluate",) if any(heads.values()) else ()))


def shipped_for(verb: str) -> str:
    """The name of the model that does this where none was named: the first of those that come with regard which can."""
    able = next((name for name, folder in shipped().items() if verb in verbs_of(read_config(folder))), None)
    if able is None:
        yours = f", such as one trained with --task {TRAINED_AS[verb]}" if verb in TRAINED_AS else ""
        raise RegardError(f"no model that comes with regard can {verb}; give yours with --model{yours}")
    return able


def hint(verb: str, config: ModelConfig) -> str:
    """What to do about a model that can't do this."""
    if verb == "classify" and config.kind == "encoder":
        return "; it was trained without labels: regard train --task classify makes one that has them"
    return f"; choose a model trained with --task {TRAINED_AS[verb]}" if verb in TRAINED_AS else ""
