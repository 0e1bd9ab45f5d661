//! Quantities of resources, such as `1.5Gi` and `100m`.

use std::{any::Any, cmp::Ordering};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelDouble, CelInt, CelString, Type},
        value::{StaticVal, Val},
    },
};

use super::failed;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// A number of billionths: the API server keeps no smaller part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Quantity(i128);

const ONE: i128 = 1_000_000_000;

/// Suffixes and what they multiply by; those with an `i` are powers of two.
const BINARY: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];
const DECIMAL: [(&str, i32); 9] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    cel::add_overload!(env, fn quantity: (CelString) -> Result<Quantity>)?;
    cel::add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    cel::add_member_overload!(env, fn sign: (Quantity) -> CelInt)?;
    cel::add_member_overload!(env, fn is_integer: (Quantity) -> CelBool)?;
    cel::add_member_overload!(env, fn as_integer: (Quantity) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn as_approximate_float: (Quantity) -> CelDouble)?;
    cel::add_member_overload!(env, fn add: (Quantity, Quantity) -> Result<Quantity>)?;
    cel::add_member_overload!(env, fn add_int: (Quantity, CelInt) -> Result<Quantity>, name = "add")?;
    cel::add_member_overload!(env, fn sub: (Quantity, Quantity) -> Result<Quantity>)?;
    cel::add_member_overload!(env, fn sub_int: (Quantity, CelInt) -> Result<Quantity>, name = "sub")?;
    cel::add_member_overload!(env, fn is_less_than: (Quantity, Quantity) -> CelBool)?;
    cel::add_member_overload!(env, fn is_greater_than: (Quantity, Quantity) -> CelBool)?;
    cel::add_member_overload!(env, fn compare_to: (Quantity, Quantity) -> CelInt)
}

impl Val for Quantity {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other
            .downcast_ref::<Self>()
            .is_some_and(|other| other == self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Quantity {}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = digits
        .find(|char: char| !char.is_ascii_digit() && char != '.')
        .unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty()
        || fraction.contains('.')
        || whole.len() > 20
        || fraction.len() > 18
    {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent) = multiplier(suffix)?;
    let exponent = exponent - places + 9;
    let mut value = mantissa.checked_mul(factor)?;
    if exponent >= 0 {
        value = value.checked_mul(10_i128.checked_pow(exponent.unsigned_abs())?)?;
    } else {
        // Smaller parts are rounded up, as the API server does.
        let divisor = 10_i128.checked_pow(exponent.unsigned_abs())?;
        value = value / divisor + i128::from(value % divisor != 0);
    }
    Some(Quantity(if negative { -value } else { value }))
}

/// The factor and the power of ten of a suffix.
fn multiplier(suffix: &str) -> Option<(i128, i32)> {
    if suffix.is_empty() {
        return Some((1, 0));
    }
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((1 << shift, 0));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((1, *exponent));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-18..=18).contains(&exponent).then_some((1, exponent))
}

fn quantity(text: &CelString<'_>) -> Result<Quantity, ExecutionError> {
    parse(text.inner()).ok_or_else(|| {
        failed(
            "quantity",
            "quantities must match the regular expression of resources",
        )
    })
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    parse(text.inner()).is_some().into()
}

fn sign(this: &Quantity) -> CelInt {
    i64::try_from(this.0.signum()).unwrap_or_default().into()
}

fn is_integer(this: &Quantity) -> CelBool {
    (this.0 % ONE == 0 && i64::try_from(this.0 / ONE).is_ok()).into()
}

fn as_integer(this: &Quantity) -> Result<CelInt, ExecutionError> {
    let whole = (this.0 % ONE == 0).then_some(this.0 / ONE);
    let whole = whole.and_then(|whole| i64::try_from(whole).ok());
    whole
        .map(CelInt::from)
        .ok_or_else(|| failed("asInteger", "cannot convert value to integer"))
}

#[allow(clippy::cast_precision_loss)]
fn as_approximate_float(this: &Quantity) -> CelDouble {
    (this.0 as f64 / ONE as f64).into()
}

fn checked(value: Option<i128>) -> Result<Quantity, ExecutionError> {
    value
        .map(Quantity)
        .ok_or_else(|| failed("quantity", "it is too large"))
}

fn whole(number: &CelInt) -> Quantity {
    Quantity(i128::from(*number.inner()) * ONE)
}

fn add(this: &Quantity, other: &Quantity) -> Result<Quantity, ExecutionError> {
    checked(this.0.checked_add(other.0))
}

fn add_int(this: &Quantity, other: &CelInt) -> Result<Quantity, ExecutionError> {
    add(this, &whole(other))
}

fn sub(this: &Quantity, other: &Quantity) -> Result<Quantity, ExecutionError> {
    checked(this.0.checked_sub(other.0))
}

fn sub_int(this: &Quantity, other: &CelInt) -> Result<Quantity, ExecutionError> {
    sub(this, &whole(other))
}

fn is_less_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this < other).into()
}

fn is_greater_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this > other).into()
}

fn compare_to(this: &Quantity, other: &Quantity) -> CelInt {
    CelInt::from(match this.cmp(other) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}
