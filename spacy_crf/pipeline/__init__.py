"""Extensions of spaCy's objects that components read or write. Importing the package sets them, so that one program can read the
extensions that another has written."""

from spacy.tokens import Doc, Span, Token

for owner, name, default in (
    (Doc, "crf_weight", 1.0),  # how much a Doc counts in training
    (Doc, "crf_hidden", None),  # what speaks for the label of a text
    # Probability of what a component with confidence = true has found: an entity, the label of a token, the label of a text. Kept
    # with the Doc's user data, so it survives DocBin(store_user_data=True)
    (Span, "crf_prob", None),
    (Token, "crf_prob", None),
    (Doc, "crf_prob", None),
):
    if not owner.has_extension(name):
        owner.set_extension(name, default=default)
