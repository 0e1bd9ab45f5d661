//! Semantic versions.

use std::{any::Any, cmp::Ordering};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelInt, CelString, Type},
        value::{StaticVal, Val},
    },
};

use super::failed;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

#[derive(Clone, Debug)]
struct Semver(semver::Version);

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    cel::add_overload!(env, fn strict: (CelString) -> Result<Semver>, name = "semver")?;
    cel::add_overload!(env, fn normal: (CelString, CelBool) -> Result<Semver>, name = "semver")?;
    cel::add_overload!(env, fn is_strict: (CelString) -> CelBool, name = "isSemver")?;
    cel::add_overload!(env, fn is_normal: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    cel::add_member_overload!(env, fn major: (Semver) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn minor: (Semver) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn patch: (Semver) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn is_less_than: (Semver, Semver) -> CelBool)?;
    cel::add_member_overload!(env, fn is_greater_than: (Semver, Semver) -> CelBool)?;
    cel::add_member_overload!(env, fn compare_to: (Semver, Semver) -> CelInt)
}

impl Val for Semver {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    /// Without build metadata, as versions are compared.
    fn equals(&self, other: &dyn Val) -> bool {
        other
            .downcast_ref::<Self>()
            .is_some_and(|other| self.compare(other) == Ordering::Equal)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Semver {}

impl Semver {
    fn compare(&self, other: &Self) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }
}

fn parse(text: &str, normalize: bool) -> Result<Semver, String> {
    let parsed = if normalize {
        semver::Version::parse(&normalized(text)?)
    } else {
        semver::Version::parse(text)
    };
    parsed.map(Semver).map_err(|error| error.to_string())
}

/// Without a leading `v` and leading zeros, and with the parts that are missing.
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("a shortened version can't have a pre-release or build metadata".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn without_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|char: char| char.is_ascii_digit()) {
        rest.to_owned()
    } else {
        format!("0{rest}")
    }
}

fn strict(text: &CelString<'_>) -> Result<Semver, ExecutionError> {
    parse(text.inner(), false).map_err(|why| failed("semver", why))
}

fn normal(text: &CelString<'_>, normalize: &CelBool) -> Result<Semver, ExecutionError> {
    parse(text.inner(), *normalize.inner()).map_err(|why| failed("semver", why))
}

fn is_strict(text: &CelString<'_>) -> CelBool {
    parse(text.inner(), false).is_ok().into()
}

fn is_normal(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
    parse(text.inner(), *normalize.inner()).is_ok().into()
}

fn number(value: u64) -> Result<CelInt, ExecutionError> {
    let value = i64::try_from(value).map_err(|_| failed("semver", "the number is too large"))?;
    Ok(value.into())
}

fn major(this: &Semver) -> Result<CelInt, ExecutionError> {
    number(this.0.major)
}

fn minor(this: &Semver) -> Result<CelInt, ExecutionError> {
    number(this.0.minor)
}

fn patch(this: &Semver) -> Result<CelInt, ExecutionError> {
    number(this.0.patch)
}

fn is_less_than(this: &Semver, other: &Semver) -> CelBool {
    (this.compare(other) == Ordering::Less).into()
}

fn is_greater_than(this: &Semver, other: &Semver) -> CelBool {
    (this.compare(other) == Ordering::Greater).into()
}

fn compare_to(this: &Semver, other: &Semver) -> CelInt {
    CelInt::from(this.compare(other) as i64)
}
