//! How much memory a process that vets a module may use.
//!
//! It shares the container with the control plane. If both together exceed the limit the
//! kernel ends the container, not the module.

const MIB: u64 = 1 << 20;

/// Enough for every module of the catalogues; more would delay the end of a module that
/// takes whatever it gets.
const MOST: u64 = 2048 * MIB;

/// Less is not enough for the engine and a small module.
const LEAST: u64 = 192 * MIB;

/// The control plane itself: its objects and streams, modules that are pulled (128 MiB) and
/// served (128 MiB), and the artefact that a child hands over.
const OWN: u64 = 448 * MIB;

/// What a child may use in this process's container.
pub(crate) fn for_children() -> u64 {
    within(assent_evaluator::memory_limit())
}

/// What a child may use within a limit for it and the control plane together. In a small
/// container the control plane has few objects: half is left for each.
fn within(limit: Option<u64>) -> u64 {
    let left = limit.map_or(MOST, |limit| limit.saturating_sub(OWN).max(limit / 2));
    left.clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_and_control_plane_fit_the_container() {
        for (limit, expected) in [
            (Some(0), LEAST),
            (Some(512 * MIB), 256 * MIB),
            (Some(1024 * MIB), 576 * MIB),
            (Some(2048 * MIB), 1600 * MIB),
            (Some(16384 * MIB), MOST),
            (None, MOST),
        ] {
            assert_eq!(within(limit), expected, "{limit:?}");
        }
    }
}
