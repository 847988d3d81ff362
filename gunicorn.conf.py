"""Serves example_app: ``gunicorn`` in this directory, with nothing else, reads this file.

Nothing in it is needed for jobs to run once: no hook, no preload, no extra process. Each line can be
changed, the number of workers and their class among them.
"""

import os

wsgi_app = "example_app:create_app()"

# The page, on this machine only. Behind a proxy: a unix socket, "unix:/run/shop.sock".
bind = os.environ.get("BIND", "127.0.0.1:8000")

# One of them owns the schedule; the others wait for its lock and take over when it dies.
workers = int(os.environ.get("WEB_CONCURRENCY", "4"))

# Any class will do: "sync", "gthread", "gevent".
worker_class = os.environ.get("WORKER_CLASS", "sync")

# Saves memory and lets HUP reload less: jobs run once with it and without it.
preload_app = False

# Workers are replaced after so many requests. The owner hands the schedule over when its turn comes.
max_requests = 5000
max_requests_jitter = 500

# How long a stopping worker may finish its requests and its running job. Keep it above
# SINGLEJOB_SHUTDOWN_TIMEOUT (25 s), or gunicorn kills the worker before the job's time is over.
graceful_timeout = 30

# The lines that say who owns the schedule and which job ran come from the app's own logging.
loglevel = "warning"
