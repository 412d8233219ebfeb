"""Text to learn tiny tokenizers from, and texts that try them."""

from __future__ import annotations

LINES = [
    "Two young men are outside near many bushes.",
    "Several men in hard hats are operating a giant pulley system, and nobody seems to mind.",
    "A little girl is climbing into a wooden playhouse; her brother waits below.",
    "The capital of France is Paris, the capital of Italy is Rome.",
    "He said: “I don't know what you're talking about!” and went home (it was late).",
    "In 1984 about 3,140 people lived there; by 2021 it was 12,977.",
    "Der Hund läuft über die Straße, während die Kinder spielen.",
    "L'été dernier, nous étions à la plage près de l'océan.",
    "What a lovely film, what an awful film: it depends on whom you ask.",
    "The quick brown fox jumps over the lazy dog, again and again and again.",
    "Numbers such as one, two, three, four and five are words as well.",
    "Nothing is so painful to the human mind as a great and sudden change.",
]
# What goes wrong first: nothing, spaces, other scripts, signs that are composed or not, and names of special tokens.
PROBES = [
    *LINES, "", " ", "  a  b ", " lead", "tail ", "a\tb\nc", "\n\nnew", "a\u00a0b", "日本語 text", "ﬁne ½ Ｆｕｌｌ", "e\u0301 é",
    "naïve café — “x” 🙂🙂 ok", "नमस्ते दुनिया", "...  ", "x" * 40, "don't I'm we've you're it's n't", "HELLO Straße İstanbul",
    "A [MASK] b [CLS][SEP]", "end</s> of <s> text", "on <|endoftext|> and <unk> on", "1234 5,678.90 -1 1/2",
]  # fmt: skip
