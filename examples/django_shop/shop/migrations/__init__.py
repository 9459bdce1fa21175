"""As `manage.py makemigrations` made them."""
