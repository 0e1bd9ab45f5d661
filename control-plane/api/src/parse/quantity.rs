//! Kubernetes quantities, as far as amounts of memory go.

/// Bytes that `text` says, rounded up; `None` where it is no quantity or too large.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor: u128 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits are more than a byte of the largest unit is worth.
    if whole.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    u64::try_from(digits.checked_mul(factor)?.div_ceil(scale)).ok()
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn reads_amounts_of_memory() {
        for (text, expect) in [
            ("128Mi", Some(128 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("64M", Some(64_000_000)),
            ("1000", Some(1000)),
            ("0.1", Some(1)),
            ("", None),
            ("Mi", None),
            ("-1Mi", None),
            ("1.2.3", None),
            ("12x", None),
            ("99999999999999999999Gi", None),
            ("99999999999999999999999999999999999999999Gi", None),
        ] {
            assert_eq!(bytes(text), expect, "{text}");
        }
    }
}
