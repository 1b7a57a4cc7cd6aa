"""Extensions of spaCy's objects that components read or write. Importing the package sets them, so that one program can read the
extensions that another has written."""

from spacy.tokens import Doc, Span

for owner, name, default in (
    (Doc, "crf_weight", 1.0),  # how much a Doc counts in training
    (Doc, "crf_hidden", None),  # what speaks for the label of a text
    (Span, "crf_prob", None),  # kept with the Doc's user data, so it survives DocBin(store_user_data=True)
):
    if not owner.has_extension(name):
        owner.set_extension(name, default=default)
