"""Reports on the predictions of a trained pipeline for annotated texts."""
