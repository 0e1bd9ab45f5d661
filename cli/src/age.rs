//! Times, as ages for people and as RFC 3339 for scripts.

use jiff::Timestamp;

/// A time as RFC 3339; none if it is absent or out of range.
pub(crate) fn rfc3339(time: Option<&prost_types::Timestamp>) -> Option<String> {
    time.and_then(read).map(|time| time.to_string())
}

/// The age of a time: `45s`, `12m`, `3h05m`, `9d`.
pub(crate) fn since(time: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    match time.and_then(read) {
        Some(time) => age(now.as_second() - time.as_second()),
        None => String::new(),
    }
}

fn read(time: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h{:02}m", s / 3_600, s / 60 % 60),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, expect) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_500, "2h05m"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(seconds), expect);
        }
    }

    #[test]
    fn times_are_written_as_rfc3339() {
        let time = |seconds, nanos| prost_types::Timestamp { seconds, nanos };
        assert_eq!(
            rfc3339(Some(&time(1, 0))).as_deref(),
            Some("1970-01-01T00:00:01Z")
        );
        assert_eq!(rfc3339(Some(&time(i64::MAX, 0))), None);
        assert_eq!(rfc3339(None), None);
    }
}
