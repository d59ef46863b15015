"""report.html: one self-contained page about a trained model. Content goes in as plain values, a file comes out."""

from bayesrule.report.content import (
    Classification,
    EpochPoint,
    FeatureRows,
    Images,
    Method,
    Provenance,
    Regression,
    Report,
    Table,
    Usage,
)
from bayesrule.report.page import render, write_report

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
