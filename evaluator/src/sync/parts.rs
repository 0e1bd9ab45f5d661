//! Large sets come in parts, which are one response: buffered, verified and answered once.

use crate::announced::Update;

/// One message of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    pub(crate) nonce: String,
    /// 1..=`of`; 0 if the response is not split.
    pub(crate) number: u32,
    pub(crate) of: u32,
    pub(crate) lease_transitions: Option<u64>,
    /// Size on the wire, for the bound on what is buffered.
    pub(crate) bytes: usize,
    pub(crate) update: Update,
}

/// The parts received so far.
#[derive(Default)]
pub(crate) struct Parts {
    buffered: Option<Part>,
}

/// Why parts can't become a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "failed to join the parts of a set: received part {found} of {of}, expected part {expected}"
    )]
    Order { expected: u32, found: u32, of: u32 },
    #[error("failed to join the parts of a set: they name different versions")]
    Version,
    #[error("failed to join the parts of a set: they exceed {0} bytes")]
    Size(usize),
}

/// A manifest of 100,000 policies with 2 KiB of settings each fits; more is a mistake.
const BYTES: usize = 256 << 20;

// === impl Parts ===

impl Parts {
    /// Adds a part; returns the response once it is complete.
    pub(crate) fn push(&mut self, part: Part) -> Result<Option<Update>, Error> {
        if part.of <= 1 {
            self.buffered = None;
            return Ok(Some(part.update));
        }
        let before = self
            .buffered
            .take()
            .filter(|before| before.nonce == part.nonce);
        let expected = before.as_ref().map_or(1, |before| before.number + 1);
        if part.number != expected || before.as_ref().is_some_and(|before| before.of != part.of) {
            return Err(Error::Order {
                expected,
                found: part.number,
                of: part.of,
            });
        }
        let joined = match before {
            None => part,
            Some(before) => join(before, part)?,
        };
        if joined.number == joined.of {
            return Ok(Some(joined.update));
        }
        self.buffered = Some(joined);
        Ok(None)
    }
}

fn join(mut before: Part, part: Part) -> Result<Part, Error> {
    if before.update.version != part.update.version {
        return Err(Error::Version);
    }
    before.bytes += part.bytes;
    if before.bytes > BYTES {
        return Err(Error::Size(BYTES));
    }
    before.number = part.number;
    let (all, more) = (&mut before.update, part.update);
    all.offers.extend(more.offers);
    all.removed_revisions.extend(more.removed_revisions);
    all.routes.extend(more.routes);
    all.removed_routes.extend(more.removed_routes);
    all.no_change |= more.no_change;
    Ok(before)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn part(nonce: &str, number: u32, of: u32) -> Part {
        Part {
            nonce: nonce.into(),
            number,
            of,
            update: Update {
                version: "v".into(),
                removed_routes: vec![number.to_string().into()],
                ..Update::default()
            },
            ..Part::default()
        }
    }

    #[test]
    fn parts_become_one_response() {
        let mut parts = Parts::default();
        assert_eq!(parts.push(part("n", 1, 3)), Ok(None));
        assert_eq!(parts.push(part("n", 2, 3)), Ok(None));
        let update = parts.push(part("n", 3, 3)).unwrap().unwrap();
        assert_eq!(update.removed_routes, ["1".into(), "2".into(), "3".into()]);
    }

    #[test]
    fn a_part_out_of_order_is_refused() {
        let mut parts = Parts::default();
        assert_eq!(parts.push(part("n", 1, 3)), Ok(None));
        assert!(matches!(
            parts.push(part("n", 3, 3)),
            Err(Error::Order { expected: 2, .. })
        ));
        assert!(matches!(
            parts.push(part("n", 2, 3)),
            Err(Error::Order { expected: 1, .. })
        ));
        assert_eq!(parts.push(part("n", 1, 3)), Ok(None));
        assert!(matches!(
            parts.push(part("m", 2, 3)),
            Err(Error::Order { expected: 1, .. })
        ));
        assert_eq!(parts.push(part("n", 1, 3)), Ok(None));
        let mut other = part("n", 2, 3);
        other.update.version = "w".into();
        assert_eq!(parts.push(other), Err(Error::Version));
    }

    #[test]
    fn an_unsplit_response_discards_buffered_parts() {
        let mut parts = Parts::default();
        assert_eq!(parts.push(part("n", 1, 2)), Ok(None));
        assert!(parts.push(part("m", 0, 0)).unwrap().is_some());
        assert!(parts.push(part("n", 2, 2)).is_err());
    }
}
