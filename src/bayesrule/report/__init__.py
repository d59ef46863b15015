"""report.html: one self-contained page about a trained model. Content goes in as plain values, a file comes out."""

from bayesrule.report.content import (
    EpochPoint,
    FeatureRows,
    Images,
    Method,
    Provenance,
    Report,
    Table,
    Usage,
)
from bayesrule.report.page import render, write_report
from bayesrule.report.predictions import Classification, Regression

__all__ = [
    "Classification",
    "EpochPoint",
    "FeatureRows",
    "Images",
    "Method",
    "Provenance",
    "Regression",
    "Report",
    "Table",
    "Usage",
    "render",
    "write_report",
]
