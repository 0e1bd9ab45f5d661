//! `find` and `findAll`.

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelInt, CelList, CelString},
        value::Val,
    },
};
use regex::Regex;

use super::failed;

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_member_overload!(env, fn find: (CelString, CelString) -> Result<CelString>)?;
    cel::add_member_overload!(env, fn find_all: (CelString, CelString) -> Result<CelList>)?;
    cel::add_member_overload!(env, fn find_some: (CelString, CelString, CelInt) -> Result<CelList>, name = "findAll")
}

fn regex(pattern: &CelString<'_>) -> Result<Regex, ExecutionError> {
    Regex::new(pattern.inner()).map_err(|error| failed("find", error))
}

fn find(
    text: &CelString<'_>,
    pattern: &CelString<'_>,
) -> Result<CelString<'static>, ExecutionError> {
    let found = regex(pattern)?
        .find(text.inner())
        .map(|found| found.as_str().to_owned());
    Ok(found.unwrap_or_default().into())
}

fn find_all(
    text: &CelString<'_>,
    pattern: &CelString<'_>,
) -> Result<CelList<'static>, ExecutionError> {
    matches(text, pattern, usize::MAX)
}

/// At most `limit`; a negative number means all.
fn find_some(
    text: &CelString<'_>,
    pattern: &CelString<'_>,
    limit: &CelInt,
) -> Result<CelList<'static>, ExecutionError> {
    matches(
        text,
        pattern,
        usize::try_from(*limit.inner()).unwrap_or(usize::MAX),
    )
}

fn matches(
    text: &CelString<'_>,
    pattern: &CelString<'_>,
    limit: usize,
) -> Result<CelList<'static>, ExecutionError> {
    let regex = regex(pattern)?;
    let found = regex.find_iter(text.inner()).take(limit);
    let found: Vec<Box<dyn Val>> = found
        .map(|found| Box::new(CelString::from(found.as_str().to_owned())) as Box<dyn Val>)
        .collect();
    Ok(CelList::from(found))
}
