"""`crf uncertainty`: what a pipeline finds, with probabilities that are averaged over drawn weights."""
# pyright: reportInvalidTypeForm=false

from spacy_crf.cli.explain import ShownTexts, print_found
from spacy_crf.cli.shared import ModelArgument, command, load_pipeline, our_pipes


@command("uncertainty")
def uncertainty_cli(model: ModelArgument, texts: ShownTexts = None) -> None:
    """Print what is found in texts, with averaged probabilities. They are means over drawn weights, and have standard deviations
    beside them."""
    from ..posterior import draw_weights

    nlp = load_pipeline(model)
    draw_weights(our_pipes(nlp, None, "of spacy_crf whose weights have variances"))
    print_found(nlp, texts)
