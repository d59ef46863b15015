"""Latent Dirichlet allocation by stochastic variational inference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bayesrule.algorithms import svi_step
from bayesrule.expfam import Categorical, Dirichlet, Natural
from bayesrule.inference.model import Expectations

Counts = Float[Tensor, "documents words"]


@dataclass(frozen=True)
class Topics:
    """Topics β_k ~ Dirichlet over words, proportions θ_d ~ Dirichlet over topics, a topic for each token.

    Attributes:
        topic_prior: Concentration of every word in a topic.
        proportion_prior: Concentration of every topic in a document.
        documents: How many there are in all, of which a minibatch sees some.
    """

    topic_prior: float
    proportion_prior: float
    documents: int

    def step(
        self, concentration: Float[Tensor, "topics words"], batch: Counts, start: Float[Tensor, "documents topics"],
        *, step_size: float, sweeps: int,
    ) -> Float[Tensor, "topics words"]:  # fmt: skip
        """The topics' concentration after a minibatch: tokens and proportions in turn with ρ = 1, then topics with ρ.

        Args:
            concentration: Of the topics, before.
            batch: How often each word is in each document.
            start: Concentration of the documents' proportions, to begin with.
            step_size: ρ of the topics.
            sweeps: How often tokens and proportions are updated in turn.
        """
        document, word = _tokens(batch)
        families = {"topics": Dirichlet(), "proportions": Dirichlet(), "tokens": Categorical()}
        naturals = {
            "topics": Dirichlet().from_concentration(concentration),
            "proportions": Dirichlet().from_concentration(start),
            "tokens": Natural(logits=start.new_zeros(len(word), start.shape[-1] - 1)),
        }

        def prior_loss(mu: Expectations) -> Tensor:
            return (1 - self.topic_prior) * mu["topics"]["log"].sum()

        def batch_loss(mu: Expectations) -> Tensor:
            scores = mu["proportions"]["log"][document] + mu["topics"]["log"].mT[word]
            tokens = (Categorical().probabilities(mu["tokens"]) * scores).sum()
            return (1 - self.proportion_prior) * mu["proportions"]["log"].sum() - tokens

        local = ["tokens", "proportions"] * sweeps + ["tokens"]
        after = svi_step(
            families, prior_loss, batch_loss, naturals,
            local_order=local, scale=self.documents / len(batch), step_size=step_size,
        )  # fmt: skip
        return Dirichlet().to_concentration(after["topics"])


def _tokens(batch: Counts) -> tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
    """Document and word of every token."""
    document, word = batch.nonzero(as_tuple=True)
    times = batch[document, word].long()
    return torch.repeat_interleave(document, times), torch.repeat_interleave(word, times)
