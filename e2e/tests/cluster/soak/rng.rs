//! Choices that a seed repeats.

use std::time::Duration;

/// SplitMix64.
pub(super) struct Rng(u64);

// === impl Rng ===

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(items.len()).ok().filter(|n| *n > 0)?;
        items.get(usize::try_from(self.below(count)).ok()?)
    }

    pub(super) async fn pause(&mut self, from: u64, to: u64) {
        let millis = from + self.below(to - from);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}
