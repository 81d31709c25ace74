"""What Celery imports by name when a worker starts. Imported before the fork, all workers of a service share it."""

from importlib import import_module

for _name in (
    "argparse",
    "faulthandler",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.concurrency.thread",
    "celery.events",
    "celery.events.receiver",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "kombu.transport.redis",
    "soong.shared.sandbox.hardening",
):
    import_module(_name)
