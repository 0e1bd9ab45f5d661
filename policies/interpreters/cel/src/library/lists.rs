//! `isSorted`, `sum`, `min`, `max`, `indexOf` and `lastIndexOf` of lists.

use std::cmp::Ordering;

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelInt, DYN_TYPE, LIST_TYPE},
        value::{CowVal, Val},
    },
};

use super::failed;

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    let add = |env: &mut Env, name: &str, args: Vec<_>, op| {
        env.add_member_overload(name, &format!("list.{name}"), LIST_TYPE, args, op)
    };
    add(env, "isSorted", vec![], is_sorted)?;
    add(env, "sum", vec![], sum)?;
    add(env, "min", vec![], min)?;
    add(env, "max", vec![], max)?;
    add(env, "indexOf", vec![DYN_TYPE], index_of)?;
    add(env, "lastIndexOf", vec![DYN_TYPE], last_index_of)
}

type Called<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// The elements of the list that a function was called on.
pub(super) fn elements<'b, 'v>(
    list: &CowVal<'b, 'v>,
) -> Result<Vec<Box<dyn Val + 'v>>, ExecutionError> {
    let list = list
        .as_iterable()
        .ok_or_else(|| failed("list", "it is not a list"))?;
    let mut iterator = list.iter();
    let mut elements = Vec::new();
    while let Some(element) = iterator.next() {
        elements.push(element.clone_as_boxed());
    }
    Ok(elements)
}

fn compare(left: &dyn Val, right: &dyn Val) -> Result<Ordering, ExecutionError> {
    let comparer = left
        .as_comparer()
        .ok_or_else(|| failed("list", "its elements can't be compared"))?;
    comparer.compare(right)
}

fn is_sorted<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Called<'b, 'v> {
    let elements = elements(&args[0])?;
    for pair in elements.windows(2) {
        if compare(&*pair[0], &*pair[1])? == Ordering::Greater {
            return Ok(CowVal::owned(CelBool::from(false)));
        }
    }
    Ok(CowVal::owned(CelBool::from(true)))
}

fn sum<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Called<'b, 'v> {
    let mut elements = elements(&args[0])?.into_iter();
    let Some(first) = elements.next() else {
        return Ok(CowVal::owned(CelInt::from(0)));
    };
    let mut sum = first;
    for element in elements {
        let adder = sum
            .as_adder()
            .ok_or_else(|| failed("sum", "its elements can't be added"))?;
        let next = adder.add(&*element)?.clone_as_boxed();
        sum = next;
    }
    Ok(CowVal::Owned(sum))
}

fn extreme<'b, 'v>(args: Vec<CowVal<'b, 'v>>, function: &str, wanted: Ordering) -> Called<'b, 'v> {
    let mut elements = elements(&args[0])?.into_iter();
    let mut found = elements
        .next()
        .ok_or_else(|| failed(function, "called on empty list"))?;
    for element in elements {
        if compare(&*element, &*found)? == wanted {
            found = element;
        }
    }
    Ok(CowVal::Owned(found))
}

fn min<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Called<'b, 'v> {
    extreme(args, "min", Ordering::Less)
}

fn max<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Called<'b, 'v> {
    extreme(args, "max", Ordering::Greater)
}

fn found<'b, 'v>(index: Option<usize>) -> Called<'b, 'v> {
    let index = index.and_then(|index| i64::try_from(index).ok());
    Ok(CowVal::owned(CelInt::from(index.unwrap_or(-1))))
}

fn index_of<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Called<'b, 'v> {
    let elements = elements(&args[0])?;
    found(
        elements
            .iter()
            .position(|element| element.equals(args[1].as_ref())),
    )
}

fn last_index_of<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Called<'b, 'v> {
    let elements = elements(&args[0])?;
    found(
        elements
            .iter()
            .rposition(|element| element.equals(args[1].as_ref())),
    )
}
