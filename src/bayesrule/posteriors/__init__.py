"""Posterior values, their covariance operators, and the families that train them: one file each."""

from bayesrule.posteriors.bernoulli import BernoulliPosterior
from bayesrule.posteriors.block_tridiagonal import BlockTridiagonalCovariance
from bayesrule.posteriors.clipped_low_rank import ClippedLowRank, ClippedLowRankCovariance
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.diagonal import Diagonal, DiagonalCovariance
from bayesrule.posteriors.eigen_kronecker import EigenKroneckerCovariance, TurnedEigenKroneckerCovariance
from bayesrule.posteriors.family import Family
from bayesrule.posteriors.full import Full, FullCovariance
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.ktied import KTied, KTiedCovariance
from bayesrule.posteriors.matrix_normal import MatrixNormal, MatrixNormalCovariance
from bayesrule.posteriors.matrix_normal_diagonal import (
    MatrixNormalDiagonal,
    MatrixNormalFreeDiagonalCovariance,
    MatrixNormalKroneckerDiagonalCovariance,
)
from bayesrule.posteriors.mixture import MixturePosterior
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.point import Point, PointPosterior
from bayesrule.posteriors.posterior import Posterior
from bayesrule.posteriors.projection import Projection, project
from bayesrule.posteriors.restricted import RestrictedCovariance
from bayesrule.posteriors.variational import Variational
from bayesrule.posteriors.work import Work

__all__ = [
    "BernoulliPosterior",
    "BlockTridiagonalCovariance",
    "ClippedLowRank",
    "ClippedLowRankCovariance",
    "CovarianceOperator",
    "Diagonal",
    "DiagonalCovariance",
    "EigenKroneckerCovariance",
    "Family",
    "Full",
    "FullCovariance",
    "GaussianPosterior",
    "KTied",
    "KTiedCovariance",
    "MatrixNormal",
    "MatrixNormalCovariance",
    "MatrixNormalDiagonal",
    "MatrixNormalFreeDiagonalCovariance",
    "MatrixNormalKroneckerDiagonalCovariance",
    "MixturePosterior",
    "OutputNoise",
    "Part",
    "Point",
    "PointPosterior",
    "Posterior",
    "Projection",
    "RestrictedCovariance",
    "TurnedEigenKroneckerCovariance",
    "Variational",
    "Work",
    "project",
]
