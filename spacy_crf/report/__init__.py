"""What a trained pipeline does well and badly, on texts whose annotation is known."""
