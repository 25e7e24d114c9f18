"""Whether a device matches the selectors of an alternative, evaluated once per distinct device."""

from controllers.claims.cel import Engine, Failed, Unknown, Verdict
from controllers.claims.requirements import Alternative, Term
from controllers.claims.slices import Offer


class Matching:
    """Answers for the alternatives of one template; keeps what it found out about each device."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._known: dict[tuple[Term, ...], dict[int, tuple[Offer, Verdict]]] = {}

    def matches(self, wanted: Alternative, offer: Offer) -> Verdict:
        """Class and request selectors, in the scheduler's order; the first that is not True decides."""
        return self._all(wanted.terms, offer)

    def in_class(self, wanted: Alternative, offer: Offer) -> Verdict:
        """The class's selectors only."""
        return self._all(wanted.class_terms, offer)

    def _all(self, terms: tuple[Term, ...], offer: Offer) -> Verdict:
        known = self._known.setdefault(terms, {})
        found = known.get(id(offer))
        if found is None:
            found = known[id(offer)] = offer, self._evaluate(terms, offer)  # the offer stays, and so its id
        return found[1]

    def _evaluate(self, terms: tuple[Term, ...], offer: Offer) -> Verdict:
        for term in terms:
            verdict = self.engine.matches(self.engine.compile(term.expression), offer.device, offer.id.driver)
            if verdict is not True:
                return _sourced(verdict, term)
        return True


def _sourced(verdict: Verdict, term: Term) -> Verdict:
    match verdict:
        case Failed(reason):
            return Failed(f"{term.source}: {reason}")
        case Unknown(reason):
            return Unknown(f"{term.source}: {reason}")
        case _:
            return verdict
