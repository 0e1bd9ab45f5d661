//! Kubernetes quantities, as amounts of memory.
//!
//! Written by hand because the crates for quantities compute with floats, which are off by one
//! for large amounts. The grammar is complete: every suffix of the API conventions, decimal
//! exponents, and fractions.

/// Digits behind the point that are looked at: an exabyte has 60 bits, so that further ones are
/// less than a byte.
const MAX_FRACTION: usize = 19;

/// The amount of bytes, rounded up; none if `text` is not a quantity, is negative, or does not
/// fit.
pub fn bytes(text: &str) -> Option<u64> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let Unit { factor, exponent } = unit(suffix)?;
    let (fraction, rest) = fraction.split_at(fraction.len().min(MAX_FRACTION));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let digits: u128 = match digits {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    // What is cut off is less than one unit of the last digit, and rounds up.
    let cut_off = rest.bytes().any(|digit| digit != b'0');
    let amount = digits.checked_mul(factor)?;
    let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scale = 10u128.checked_pow(shift.unsigned_abs());
    let bytes = match (shift >= 0, scale) {
        (true, Some(scale)) => amount.checked_mul(scale)?,
        (true, None) => (amount == 0).then_some(0)?,
        (false, Some(scale)) => amount.div_ceil(scale),
        (false, None) => u128::from(amount != 0),
    };
    let exact = shift >= 0 || scale.is_some_and(|scale| amount.is_multiple_of(scale));
    let bytes = bytes + u128::from(cut_off && exact);
    u64::try_from(bytes).ok()
}

/// What a number is multiplied by: `factor` times ten to the power of `exponent`.
struct Unit {
    factor: u128,
    exponent: i32,
}

fn unit(suffix: &str) -> Option<Unit> {
    let binary = |bits: u32| Unit {
        factor: 1 << bits,
        exponent: 0,
    };
    let decimal = |exponent: i32| Unit {
        factor: 1,
        exponent,
    };
    Some(match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            decimal(exponent.parse().ok()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(bytes(text), expect, "{text}");
    }

    #[test]
    fn every_suffix_is_read() {
        for (suffix, expect) in [
            ("", 1),
            ("k", 1_000),
            ("M", 1_000_000),
            ("G", 1_000_000_000),
            ("T", 1_000_000_000_000),
            ("P", 1_000_000_000_000_000),
            ("E", 1_000_000_000_000_000_000),
            ("Ki", 1 << 10),
            ("Mi", 1 << 20),
            ("Gi", 1 << 30),
            ("Ti", 1 << 40),
            ("Pi", 1 << 50),
            ("Ei", 1 << 60),
        ] {
            check(&format!("1{suffix}"), Some(expect));
        }
        check("1500m", Some(2));
        check("2000000u", Some(2));
        check("1n", Some(1));
        check("1e3", Some(1_000));
        check("1E3", Some(1_000));
        check("12e-1", Some(2));
        check("1e+2", Some(100));
    }

    #[test]
    fn fractions_are_rounded_up() {
        check("128Mi", Some(128 << 20));
        check("1.5Gi", Some(3 << 29));
        check("64M", Some(64_000_000));
        check("0.1", Some(1));
        check(".5Ki", Some(512));
        check("5.", Some(5));
        check("+1Mi", Some(1 << 20));
        check("0", Some(0));
        check("000Gi", Some(0));
        check("1.00000000000000000000", Some(1));
        check("1.00000000000000000001", Some(2));
        check("0e999999999", Some(0));
        check("1e-999999999", Some(1));
        // Floats would be off by one.
        check("9007199254740993", Some(9_007_199_254_740_993));
        check("18446744073709551615", Some(u64::MAX));
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            ".",
            "Mi",
            "-1Mi",
            "1.2.3",
            "12x",
            "1 Mi",
            "1MI",
            "1mi",
            "1K",
            "1e",
            "1e1.5",
            "1EE",
            "++1",
            "18446744073709551616",
            "99999999999999999999Gi",
            "99999999999999999999999999999999999999999Gi",
            "1e999999999",
            "1e99999999999",
            "16Ei",
        ] {
            check(text, None);
        }
    }
}
