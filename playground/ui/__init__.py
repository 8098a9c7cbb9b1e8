"""The page: the only place that imports gradio."""
