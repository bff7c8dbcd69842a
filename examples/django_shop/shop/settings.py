"""The settings of the shop; what concerns push notifications is `notifier.django` and NOTIFIER_CONFIG."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

INSTALLED_APPS = ["notifier.django", "shop"]
NOTIFIER_CONFIG = BASE_DIR / "notifier.yaml"

SECRET_KEY = "for this example alone"
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DB", BASE_DIR / "db.sqlite3")}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
