"""Calling tools without a model: the full pipeline in this process, no Redis, no service (EXE-12).

``session`` is one sitting of calls, ``gate`` its consent, ``folder`` its record; ``bootstrap`` puts them together for
``soong tools call`` and for programs.
"""
