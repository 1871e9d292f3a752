"""The bundled demo models and the code that trained them."""
