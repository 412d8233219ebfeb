"""Each idea of the notes, run. `docs/notes.md` says which test belongs to which idea."""
