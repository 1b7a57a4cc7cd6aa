"""HTML of texts with marked predictions, in the style of displaCy; the colour of a mark shows its probability."""

import re
from collections.abc import Iterable
from html import escape
from typing import Optional, Union

from spacy import displacy
from spacy.displacy.render import EntityRenderer
from spacy.tokens import Doc, Span

from .. import pipeline  # noqa: F401  sets crf_prob, which is read
from ..types import Settings

# White over displaCy's colour, more of it for lower probabilities: this works for colours and for gradients.
_MARK = """
<mark class="entity" style="background: linear-gradient(rgba(255, 255, 255, {faint}), rgba(255, 255, 255, {faint})), {bg}; \
color: #000; border: 1px solid rgba(128, 128, 128, 0.5); padding: 0.45em 0.6em; margin: 0 0.25em; line-height: 1; \
border-radius: 0.35em; display: inline-block" title="{title}">
    {text}
    <span style="font-size: 0.8em; white-space: nowrap; \
font-weight: bold; line-height: 1; border-radius: 0.35em; vertical-align: middle; \
margin-inline-start: 0.5rem">{label}{kb_link}{percent}</span>
</mark>
"""
# Missing from displaCy's page, which sets no colours: the browser chooses the colours of dark mode.
_HEAD = """\
        <meta charset="utf-8">
        <meta name="viewport" content="width=device-width, initial-scale=1">
        <style>:root { color-scheme: light dark }
        body { max-width: 62rem; margin: 0 auto; padding: 1rem !important } figure { margin: 1rem 0 !important }</style>"""
_FAINTEST = 0.9  # share of white of a mark whose probability is 0


def render(
    docs: Union[Doc, Iterable[Doc]],
    *,
    page: bool = False,
    title: str = "Found in texts",
    jupyter: Optional[bool] = None,
    options: Optional[Settings] = None,
) -> Optional[str]:
    """Render texts as HTML with marked entities, or with tags if they have no entities. The colour of a mark is paler the lower
    its ``crf_prob`` is, if a component with ``confidence = true`` set it.

    docs (Doc, Iterable[Doc]): Docs that a pipeline has annotated.
    page (bool): Whether to make a complete page without external resources. title (str): Its title.
    jupyter (bool): Whether to show the HTML in the notebook and return None; by default in notebooks.
    options (dict): Options of displaCy: colors, ents, kb_url_template.
    RETURNS (str)
    """
    options = options or {}
    colors = EntityRenderer(options).colors
    wanted = options.get("ents")
    labels = {label.upper() for label in wanted} if wanted is not None else None
    parsed = [_parsed(doc, options, colors, labels) for doc in ([docs] if isinstance(docs, Doc) else docs)]
    # `_parsed` leaves out other labels: displaCy would compare them after they are escaped
    settings = {key: value for key, value in options.items() if key != "ents"} | {"template": _MARK}
    html = displacy.render(parsed, style="ent", page=page, jupyter=jupyter, options=settings, manual=True)
    if page and html is not None:
        html = html.replace("<head>", f"<head>\n{_HEAD}", 1).replace("<title>displaCy<", f"<title>{escape(title)}<", 1)
        body = re.search("<body[^>]*>", html)
        if body is not None:
            html = f"{html[: body.end()]}<h1>{escape(title)}</h1>{html[body.end() :]}"
    return html


def _parsed(doc: Doc, options: Settings, colors: dict[str, str], labels: Optional[set[str]]) -> Settings:
    """Convert a Doc for displaCy's renderer, which escapes texts, but neither labels nor titles.

    labels (Set[str]): Labels to mark, in capitals; None for all.
    """
    title = doc.user_data.get("title")
    spans = [span for span in _spans(doc) if labels is None or span.label_.upper() in labels]
    return {
        "text": doc.text,
        "ents": [_mark(span, options, colors) for span in spans],
        "title": escape(title) if isinstance(title, str) else None,
        "settings": {
            "lang": escape(doc.lang_),
            "direction": doc.vocab.writing_system.get("direction", "ltr"),
        },
    }


def _spans(doc: Doc) -> list[Span]:
    """The entities; in a Doc without annotation of entities the tagged tokens."""
    if doc.has_annotation("ENT_IOB"):
        return list(doc.ents)
    return [Span(doc, token.i, token.i + 1, token.tag_) for token in doc if token.tag_ and not token.is_space]


def _mark(span: Span, options: Settings, colors: dict[str, str]) -> Settings:
    """The span as displaCy's renderer reads it, with the parameters of `_MARK`."""
    probability = span._.crf_prob
    title = escape(span.label_)
    percent = ""
    faint = 0.0
    if probability is not None:
        title = f"{title}, probability {probability:.4f}"
        percent = f" {probability:.0%}"
        faint = round(_FAINTEST * (1.0 - probability), 3)
    link = options.get("kb_url_template")
    params = {"title": title, "percent": percent, "faint": faint, "text": escape(span.text)}
    if span.label_.upper() in colors:  # look up the label before it is escaped
        params["bg"] = colors[span.label_.upper()]
    return {
        "start": span.start_char,
        "end": span.end_char,
        "label": escape(span.label_),
        "kb_id": escape(span.kb_id_),
        "kb_url": escape(link.format(span.kb_id_)) if link and span.kb_id_ else "#",
        "params": params,
    }
