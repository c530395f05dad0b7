"""Expressions that choose rows."""

from recd_plugins.data.expression.expression import Expression, Verdict, expression
from recd_plugins.data.expression.tree import Known

__all__ = ["Expression", "Known", "Verdict", "expression"]
