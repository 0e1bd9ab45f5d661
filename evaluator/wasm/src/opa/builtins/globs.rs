//! Whether two patterns have a text in common.

use regorus::Value;

use super::{Bounded, TooMuch, bounded::within, string};
use crate::opa::deadline;

/// What one place of a pattern takes.
#[derive(PartialEq)]
enum Place {
    Any,
    One(Vec<(char, char)>),
}

/// A place, and how often it is taken.
#[derive(PartialEq)]
struct Step {
    place: Place,
    flag: Flag,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Once,
    Plus,
    Star,
}

/// Ranges of one set; a repeated letter adds one too.
const MAX_RANGES: usize = 1_000;

/// Steps of one search: it goes back and forth.
const MAX_STEPS: usize = 1_000_000;

/// The search that OPA makes. It takes a step for a step, so that `xa*` and `x` have nothing in common for it.
struct Search {
    steps: usize,
}

pub(super) fn find(name: &str) -> Option<Bounded> {
    (name == "regex.globs_match").then_some(globs_match as Bounded)
}

fn globs_match(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [left, right] = [0, 1].map(|index| string(args, index).and_then(steps));
    let (Some(left), Some(right)) = (left, right) else {
        return Ok(None);
    };
    let mut search = Search { steps: 0 };
    let found = match without_edges(&left, &right) {
        Some((left, right)) => search.plain(left, right)?,
        None => false,
    };
    Ok(Some(Value::Bool(found)))
}

/// Removes matching steps at both ends, except for one; none if steps there do not match.
fn without_edges<'s>(left: &'s [Step], right: &'s [Step]) -> Option<(&'s [Step], &'s [Step])> {
    let (mut a, mut b) = (left, right);
    let mut taken = false;
    while let ([x, a_rest @ ..], [y, b_rest @ ..]) = (a, b)
        && x.flag == Flag::Once
        && y.flag == Flag::Once
    {
        if !x.place.meets(&y.place) {
            return None;
        }
        // The last that fitted stays.
        let more = matches!((a_rest, b_rest), ([x, ..], [y, ..]) if x.flag == Flag::Once && y.flag == Flag::Once);
        if !more {
            taken = true;
            break;
        }
        (a, b) = (a_rest, b_rest);
    }
    let least = usize::from(taken);
    while let ([a_rest @ .., x], [b_rest @ .., y]) = (a, b)
        && x.flag == Flag::Once
        && y.flag == Flag::Once
    {
        if !x.place.meets(&y.place) {
            return None;
        }
        let more = matches!((a_rest, b_rest), ([.., x], [.., y]) if x.flag == Flag::Once && y.flag == Flag::Once);
        if !more || a_rest.len() < least || b_rest.len() < least {
            break;
        }
        (a, b) = (a_rest, b_rest);
    }
    Some((a, b))
}

// === impl Search ===

impl Search {
    fn step(&mut self) -> Result<(), TooMuch> {
        self.steps += 1;
        if self.steps.is_multiple_of(8) {
            deadline::check();
        }
        within(self.steps, MAX_STEPS)
    }

    fn plain(&mut self, a: &[Step], b: &[Step]) -> Result<bool, TooMuch> {
        for at in 0..a.len().min(b.len()) {
            self.step()?;
            let (a_rest, b_rest) = (&a[at..], &b[at..]);
            match (a_rest[0].flag, b_rest[0].flag) {
                (Flag::Once, Flag::Once) if a_rest[0].place.meets(&b_rest[0].place) => {}
                (Flag::Once, Flag::Once) => return Ok(false),
                (Flag::Plus, _) => return self.plus(a_rest, b_rest),
                (Flag::Star, _) => return self.star(a_rest, b_rest),
                (Flag::Once, Flag::Plus) => return self.plus(b_rest, a_rest),
                (Flag::Once, Flag::Star) => return self.star(b_rest, a_rest),
            }
        }
        Ok(a.len() == b.len())
    }

    /// The first step of `many` is taken at least once.
    fn plus(&mut self, many: &[Step], other: &[Step]) -> Result<bool, TooMuch> {
        if !many[0].place.meets(&other[0].place) {
            return Ok(false);
        }
        if self.star(many, &other[1..])? {
            return Ok(true);
        }
        Ok(other[0].flag != Flag::Once && self.plain(&many[1..], other)?)
    }

    /// The first step of `many` is taken for as long as it fits.
    fn star(&mut self, many: &[Step], other: &[Step]) -> Result<bool, TooMuch> {
        let next = many.get(1);
        for (at, step) in other.iter().enumerate() {
            self.step()?;
            let goes_on = next.is_some_and(|next| next.place.meets(&step.place));
            if goes_on && self.plain(&many[1..], &other[at..])? {
                return Ok(true);
            }
            if !many[0].place.meets(&step.place) {
                return Ok(false);
            }
        }
        Ok(next.is_none())
    }
}

// === impl Place ===

impl Place {
    fn letter(letter: char) -> Self {
        Self::One(vec![(letter, letter)])
    }

    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Any, Self::One(ranges)) | (Self::One(ranges), Self::Any) => !ranges.is_empty(),
            (Self::One(these), Self::One(those)) => these
                .iter()
                .any(|a| those.iter().any(|b| a.0 <= b.1 && b.0 <= a.1)),
        }
    }
}

/// Reads letters, `.`, `[…]` and `\` before a letter, each with `*` or `+` after it; nothing else is special.
fn steps(pattern: &str) -> Option<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        let place = match letter {
            '.' => Place::Any,
            '[' => Place::One(set(&mut letters)?),
            ']' | '*' | '+' => return None,
            '\\' => Place::letter(letters.next()?),
            letter => Place::letter(letter),
        };
        let flag = match letters.next_if(|next| matches!(next, '*' | '+')) {
            Some('+') => Flag::Plus,
            Some(_) => Flag::Star,
            None => Flag::Once,
        };
        match steps.last_mut() {
            // The same again any number of times is the same.
            Some(Step {
                place: before,
                flag: known,
            }) if flag != Flag::Once && *known != Flag::Once && *before == place => {
                if flag == Flag::Plus {
                    *known = Flag::Plus;
                }
            }
            _ => steps.push(Step { place, flag }),
        }
    }
    Some(steps)
}

/// Letters and ranges up to the closing bracket.
fn set(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<Vec<(char, char)>> {
    let mut ranges = Vec::new();
    let mut before = None;
    loop {
        match letters.next()? {
            ']' => return Some(ranges),
            '-' => {
                let from: char = before.take()?;
                let to = match letters.next()? {
                    ']' | '-' => return None,
                    '\\' => letters.next()?,
                    letter => letter,
                };
                if to < from {
                    return None;
                }
                ranges.push((from, to));
            }
            // Sets are compared range by range.
            _ if ranges.len() >= MAX_RANGES => return None,
            letter => {
                let letter = if letter == '\\' {
                    letters.next()?
                } else {
                    letter
                };
                ranges.push((letter, letter));
                before = Some(letter);
            }
        }
    }
}
