//! What the search looks for: the fastest split that fits, or the one that lacks least.

use std::cmp::Reverse;

use daisy_proto::LayerRange;

use super::Costs;
use super::search::Objective;

/// Time per token, then the margin of the tightest rank. Splits that do not fit are none.
pub(super) struct Fastest<'a>(pub(super) &'a Costs<'a>);

/// The largest lack of any rank. Every split counts that has links.
pub(super) struct LeastShort<'a>(pub(super) &'a Costs<'a>);

impl Objective for Fastest<'_> {
    type Cost = (u64, Reverse<u64>);

    fn rank(&self, node: usize, layers: LayerRange) -> Option<Self::Cost> {
        let sum = self.0.sums.range(layers, layers.start == 0);
        let fit = self.0.fit(node, &sum);
        let fits = fit.short_bytes() == 0;
        fits.then(|| (self.0.nodes[node].speed.decode_ns(&sum), Reverse(fit.margin_bytes())))
    }

    fn hop(&self, from: usize, to: usize) -> Option<Self::Cost> {
        let ns = self.0.hop_ns(from, to, self.0.model.hidden_bytes)?;
        Some((ns, Reverse(u64::MAX)))
    }

    fn add((ns, margin): Self::Cost, (more_ns, other): Self::Cost) -> Self::Cost {
        // The larger `Reverse` is the smaller margin.
        (ns.saturating_add(more_ns), margin.max(other))
    }
}

impl Objective for LeastShort<'_> {
    type Cost = u64;

    fn rank(&self, node: usize, layers: LayerRange) -> Option<Self::Cost> {
        Some(self.0.fit(node, &self.0.sums.range(layers, layers.start == 0)).short_bytes())
    }

    fn hop(&self, from: usize, to: usize) -> Option<Self::Cost> {
        self.0.hop_ns(from, to, self.0.model.hidden_bytes).map(|_| 0)
    }

    fn add(a: Self::Cost, b: Self::Cost) -> Self::Cost {
        a.max(b)
    }
}
