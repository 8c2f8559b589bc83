"""A grammar's mask, as a test wants it: it allows everything, or forces a run of tokens."""

from collections.abc import Sequence

from pagoda_engine.token_mask import TokenBits, has_token, token_bits


class ForcingMask:
    """Allows all tokens where `forced` says nothing, else the first of them alone."""

    vocab_size: int

    def forced(self, output_token_ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that follow this output, whatever the model says."""
        raise NotImplementedError

    def bitmask(self, output_token_ids: Sequence[int]) -> TokenBits:
        return token_bits(
            [*self.forced(output_token_ids)][:1] or range(self.vocab_size), self.vocab_size
        )

    def ahead(self, output_token_ids: Sequence[int], proposed: Sequence[int]) -> list[TokenBits]:
        output = [*output_token_ids]
        masks = [self.bitmask(output)]
        for token_id in proposed:
            if not has_token(masks[-1], token_id):
                break
            output.append(token_id)
            masks.append(self.bitmask(output))
        return masks
