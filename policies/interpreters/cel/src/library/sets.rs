//! `sets.contains`, `sets.equivalent` and `sets.intersects`.

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, LIST_TYPE},
        value::{CowVal, Val},
    },
};

use super::lists::elements;

type Elements<'v> = Vec<Box<dyn Val + 'v>>;

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    let lists = || vec![LIST_TYPE, LIST_TYPE];
    env.add_overload("sets.contains", "list_sets_contains", lists(), |args| {
        decide(args, includes)
    })?;
    env.add_overload("sets.equivalent", "list_sets_equivalent", lists(), |args| {
        decide(args, |left, right| {
            includes(left, right) && includes(right, left)
        })
    })?;
    env.add_overload("sets.intersects", "list_sets_intersects", lists(), |args| {
        decide(args, |left, right| {
            left.iter().any(|one| has(right, &**one))
        })
    })
}

fn has(all: &[Box<dyn Val + '_>], one: &dyn Val) -> bool {
    all.iter().any(|element| element.equals(one))
}

fn includes(all: &Elements<'_>, some: &Elements<'_>) -> bool {
    some.iter().all(|one| has(all, &**one))
}

fn decide<'b, 'v>(
    args: Vec<CowVal<'b, 'v>>,
    test: impl Fn(&Elements<'v>, &Elements<'v>) -> bool,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let answer = test(&elements(&args[0])?, &elements(&args[1])?);
    Ok(CowVal::owned(CelBool::from(answer)))
}
