"""The run-time checker of shapes and types; as for a type checker, an int will do where a float is asked for."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
