//! Regular expressions that stop at the deadline of the evaluation.
//!
//! A search of the `regex` crate takes time in proportion to pattern times text, and can't be interrupted; a loop over
//! matches repeats that. So automata that are built lazily are stepped here byte by byte, with looks at the clock in
//! between: one forwards for the end of a match, one backwards for its start. Patterns have the same syntax and the
//! same matches.

use std::{cell::RefCell, fmt};

use regex_automata::{
    Anchored, Input, MatchKind,
    hybrid::dfa::{Cache, DFA},
    nfa::thompson::{self, NFA, WhichCaptures, pikevm::PikeVM},
    util::captures::Captures,
};
use regorus::Value;

use super::{Bounded, TooMuch, bounded::within, string};
use crate::{limits::OUTPUT_BYTES, opa::deadline};

/// A compiled pattern.
pub(super) struct Pattern {
    text: String,
    nfa: NFA,
    forward: DFA,
    backward: DFA,
    caches: RefCell<(Cache, Cache)>,
}

/// Why there is no pattern.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    Syntax,
    TooLarge,
}

/// The automaton can't go on: a Unicode word boundary beside a letter that is not ASCII.
struct Quit;

/// Longest pattern. The parser expands a Unicode class of two bytes to some 5 KiB, before the size of the automaton is
/// limited.
const MAX_PATTERN: usize = 8 << 10;

/// Some 10,000 states: a step takes 100 µs at worst. The patterns of policies are far below.
const MAX_AUTOMATON: usize = 256 << 10;

/// Backwards the classes of Unicode take more.
const MAX_BACKWARD: usize = 1 << 20;

/// Matches or pieces in one result.
const MAX_PIECES: usize = 1_000_000;

/// Bytes between two looks at the clock.
const STRIDE: usize = 64;

pub(super) fn find(name: &str) -> Option<Bounded> {
    Some(match name {
        "regex.find_n" => find_n,
        "regex.is_valid" => is_valid,
        "regex.match" => matches,
        "regex.replace" => replace,
        "regex.split" => split,
        "regex.template_match" => template_match,
        _ => return None,
    })
}

// === impl Pattern ===

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, Invalid> {
        if text.len() > MAX_PATTERN {
            return Err(Invalid::TooLarge);
        }
        deadline::check();
        let forward = thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON));
        let backward = thompson::Config::new()
            .nfa_size_limit(Some(MAX_BACKWARD))
            .reverse(true)
            .which_captures(WhichCaptures::None);
        let nfa = compile(text, forward)?;
        deadline::check();
        let backward = lazy(compile(text, backward)?, MatchKind::All)?;
        let forward = lazy(nfa.clone(), MatchKind::LeftmostFirst)?;
        deadline::check();
        let caches = RefCell::new((forward.create_cache(), backward.create_cache()));
        Ok(Self {
            text: text.to_owned(),
            nfa,
            forward,
            backward,
            caches,
        })
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        self.find_at(text, 0).is_some()
    }

    /// The first match at or after `at`: its start and its end.
    fn find_at(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        match self.step(text, at) {
            Ok(found) => found,
            Err(Quit) => self.find_at_once(text, at),
        }
    }

    /// As the lazy automata find it.
    fn step(&self, text: &str, mut at: usize) -> Result<Option<(usize, usize)>, Quit> {
        let (forward, backward) = &mut *self.caches.borrow_mut();
        loop {
            let Some(end) = self.end(forward, text, at)? else {
                return Ok(None);
            };
            let start = self.start(backward, text, at, end)?;
            // An empty match may be within a character of several bytes, which does not count.
            if start < end || text.is_char_boundary(end) {
                return Ok(Some((start, end)));
            }
            at += 1;
        }
    }

    fn end(&self, cache: &mut Cache, text: &str, at: usize) -> Result<Option<usize>, Quit> {
        let dfa = &self.forward;
        let input = Input::new(text).span(at..text.len());
        let mut state = dfa.start_state_forward(cache, &input).map_err(|_| Quit)?;
        let mut found = None;
        for (index, byte) in text.as_bytes().iter().enumerate().skip(at) {
            if index % STRIDE == 0 {
                deadline::check();
            }
            state = dfa.next_state(cache, state, *byte).map_err(|_| Quit)?;
            if state.is_tagged() {
                if state.is_match() {
                    // Matches are known one byte later.
                    found = Some(index);
                } else if state.is_dead() {
                    return Ok(found);
                } else if state.is_quit() {
                    return Err(Quit);
                }
            }
        }
        let state = dfa.next_eoi_state(cache, state).map_err(|_| Quit)?;
        Ok(if state.is_match() {
            Some(text.len())
        } else {
            found
        })
    }

    /// The start of the match that ends at `end`.
    fn start(&self, cache: &mut Cache, text: &str, at: usize, end: usize) -> Result<usize, Quit> {
        let dfa = &self.backward;
        let input = Input::new(text).span(at..end).anchored(Anchored::Yes);
        let mut state = dfa.start_state_reverse(cache, &input).map_err(|_| Quit)?;
        let bytes = text.as_bytes();
        let mut found = end;
        for index in (at..end).rev() {
            if index % STRIDE == 0 {
                deadline::check();
            }
            state = dfa
                .next_state(cache, state, bytes[index])
                .map_err(|_| Quit)?;
            if state.is_tagged() {
                if state.is_match() {
                    found = index + 1;
                } else if state.is_dead() {
                    return Ok(found);
                } else if state.is_quit() {
                    return Err(Quit);
                }
            }
        }
        let state = match at.checked_sub(1) {
            Some(before) => dfa.next_state(cache, state, bytes[before]),
            None => dfa.next_eoi_state(cache, state),
        };
        let state = state.map_err(|_| Quit)?;
        if state.is_quit() {
            return Err(Quit);
        }
        Ok(if state.is_match() { at } else { found })
    }

    /// Without interruption, if there is enough time.
    fn find_at_once(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        deadline::afford(self.cost(text.len() - at));
        let vm = PikeVM::builder().build_from_nfa(self.nfa.clone()).ok()?;
        let input = Input::new(text).span(at..text.len());
        let found = vm.find(&mut vm.create_cache(), input)?;
        Some((found.start(), found.end()))
    }

    /// Steps of a search that is not interrupted: every state for every byte.
    fn cost(&self, bytes: usize) -> usize {
        self.nfa.states().len().saturating_mul(bytes)
    }

    /// Calls `each` with every match until it returns false.
    fn for_each(
        &self,
        text: &str,
        mut each: impl FnMut(usize, usize) -> Result<bool, TooMuch>,
    ) -> Result<(), TooMuch> {
        let (mut at, mut last) = (0, None);
        while at <= text.len() {
            deadline::tick();
            let Some((start, end)) = self.find_at(text, at) else {
                return Ok(());
            };
            // An empty match directly after another match does not count.
            if start == end && last == Some(end) {
                at += 1;
                continue;
            }
            if !each(start, end)? {
                return Ok(());
            }
            (at, last) = (end, Some(end));
        }
        Ok(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn compile(text: &str, config: thompson::Config) -> Result<NFA, Invalid> {
    let nfa = thompson::Compiler::new().configure(config).build(text);
    nfa.map_err(|error| match error.size_limit() {
        Some(_) => Invalid::TooLarge,
        None => Invalid::Syntax,
    })
}

fn lazy(nfa: NFA, kind: MatchKind) -> Result<DFA, Invalid> {
    let config = DFA::config()
        .match_kind(kind)
        .unicode_word_boundary(true)
        .skip_cache_capacity_check(true);
    let dfa = DFA::builder().configure(config).build_from_nfa(nfa);
    dfa.map_err(|_| Invalid::TooLarge)
}

/// A pattern from an argument; none is undefined.
fn pattern(text: &str) -> Result<Option<Pattern>, TooMuch> {
    match Pattern::new(text) {
        Ok(pattern) => Ok(Some(pattern)),
        Err(Invalid::Syntax) => Ok(None),
        Err(Invalid::TooLarge) => Err(TooMuch),
    }
}

fn is_valid(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let valid = match string(args, 0) {
        Some(text) => pattern(text)?.is_some(),
        None => false,
    };
    Ok(Some(Value::Bool(valid)))
}

fn matches(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(pattern_text), Some(text)] = [0, 1].map(|index| string(args, index)) else {
        return Ok(None);
    };
    Ok(pattern(pattern_text)?.map(|pattern| Value::Bool(pattern.is_match(text))))
}

/// The first matches; all if the number is negative.
fn find_n(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(pattern_text), Some(text)] = [0, 1].map(|index| string(args, index)) else {
        return Ok(None);
    };
    let count = match args.get(2) {
        Some(Value::Number(count)) if count.is_integer() => {
            count.as_i64().map_or(usize::MAX, |count| {
                usize::try_from(count).unwrap_or(usize::MAX)
            })
        }
        _ => return Ok(None),
    };
    let Some(pattern) = pattern(pattern_text)? else {
        return Ok(None);
    };
    let mut found = Vec::new();
    if count > 0 {
        pattern.for_each(text, |start, end| {
            deadline::reserve_values(1);
            found.push(Value::from(&text[start..end]));
            within(found.len(), MAX_PIECES)?;
            Ok(found.len() < count)
        })?;
    }
    Ok(Some(Value::from(found)))
}

fn split(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(pattern_text), Some(text)] = [0, 1].map(|index| string(args, index)) else {
        return Ok(None);
    };
    let Some(pattern) = pattern(pattern_text)? else {
        return Ok(None);
    };
    let (mut pieces, mut last) = (Vec::new(), 0);
    pattern.for_each(text, |start, end| {
        deadline::reserve_values(1);
        pieces.push(Value::from(&text[last..start]));
        last = end;
        within(pieces.len(), MAX_PIECES)?;
        Ok(true)
    })?;
    pieces.push(Value::from(&text[last..]));
    Ok(Some(Value::from(pieces)))
}

fn replace(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(text), Some(pattern_text), Some(with)] = [0, 1, 2].map(|index| string(args, index))
    else {
        return Ok(None);
    };
    let Some(pattern) = pattern(pattern_text)? else {
        return Ok(None);
    };
    let mut groups = with.contains('$').then(|| Groups::new(&pattern)).flatten();
    let (mut out, mut last) = (String::new(), 0);
    pattern.for_each(text, |start, end| {
        let before = out.len();
        out.push_str(&text[last..start]);
        match &mut groups {
            Some(groups) => groups.expand(text, start, end, with, &mut out),
            None => out.push_str(with),
        }
        last = end;
        deadline::reserve(out.len() - before);
        within(out.len(), OUTPUT_BYTES)?;
        Ok(true)
    })?;
    out.push_str(&text[last..]);
    Ok(Some(Value::from(out)))
}

/// Finds the groups of matches whose place is known.
struct Groups<'p> {
    pattern: &'p Pattern,
    vm: PikeVM,
    cache: regex_automata::nfa::thompson::pikevm::Cache,
    captures: Captures,
}

// === impl Groups ===

impl<'p> Groups<'p> {
    fn new(pattern: &'p Pattern) -> Option<Self> {
        let vm = PikeVM::builder().build_from_nfa(pattern.nfa.clone()).ok()?;
        Some(Self {
            pattern,
            cache: vm.create_cache(),
            captures: vm.create_captures(),
            vm,
        })
    }

    /// Writes the replacement of one match.
    fn expand(&mut self, text: &str, start: usize, end: usize, with: &str, out: &mut String) {
        deadline::afford(self.pattern.cost(end - start));
        let input = Input::new(text).span(start..end).anchored(Anchored::Yes);
        self.vm.captures(&mut self.cache, input, &mut self.captures);
        self.captures.interpolate_string_into(text, with, out);
    }
}

/// Whether a text matches a template: literal text, and patterns between delimiters.
fn template_match(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(mut template), Some(mut text), Some(open), Some(close)] =
        [0, 1, 2, 3].map(|index| string(args, index))
    else {
        return Ok(None);
    };
    while let (Some(start), Some(end)) = (template.find(open), template.find(close)) {
        deadline::tick();
        let Some(inner) = template.get(start + open.len()..end) else {
            return Ok(None);
        };
        let Some(rest) = text.strip_prefix(&template[..start]) else {
            return Ok(Some(Value::Bool(false)));
        };
        let Some(pattern) = pattern(inner)? else {
            return Ok(None);
        };
        match pattern.find_at(rest, 0) {
            Some((0, length)) => text = &rest[length..],
            _ => return Ok(Some(Value::Bool(false))),
        }
        template = &template[end + close.len()..];
    }
    Ok(Some(Value::Bool(template == text)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PATTERNS: [&str; 22] = [
        "",
        "a",
        "a*",
        "a+b",
        "(a|ab)(c|bcd)",
        "^",
        "$",
        "^a",
        "a$",
        "(?m)^a$",
        "x*?",
        "a{2,3}",
        r"\w+",
        r"\b",
        r"\bab",
        r"(?-u:\b)a",
        "[^a]",
        ".",
        "é",
        "(?i)É",
        "b|",
        "a.*b|a",
    ];

    const TEXTS: [&str; 12] = [
        "",
        "a",
        "aab",
        "abcd",
        "xaxbxa",
        "a\nb\na",
        "éaé",
        "日本語 ab ab",
        "aaaaaaa",
        "ab ab é",
        "\u{301}a\u{301}",
        "no match here: 123",
    ];

    #[test]
    fn matches_are_those_of_the_regex_crate() {
        for pattern_text in PATTERNS {
            let pattern = Pattern::new(pattern_text).unwrap();
            let regex = regex::Regex::new(pattern_text).unwrap();
            for text in TEXTS {
                let mut found = Vec::new();
                let each = |start, end| {
                    found.push((start, end));
                    Ok(true)
                };
                pattern.for_each(text, each).unwrap();
                let expected: Vec<_> = regex
                    .find_iter(text)
                    .map(|one| (one.start(), one.end()))
                    .collect();
                assert_eq!(found, expected, "{pattern_text:?} in {text:?}");
                assert_eq!(pattern.is_match(text), regex.is_match(text));
                let args = [text, pattern_text, "<$0$1>"].map(Value::from);
                let replaced = replace(&args).unwrap().unwrap();
                let expected = regex.replace_all(text, "<$0$1>").into_owned();
                assert_eq!(
                    replaced,
                    Value::from(expected),
                    "{pattern_text:?} in {text:?}"
                );
                let args = [pattern_text, text].map(Value::from);
                let pieces: Vec<Value> = regex.split(text).map(Value::from).collect();
                assert_eq!(split(&args).unwrap().unwrap(), Value::from(pieces));
            }
        }
    }

    #[test]
    fn patterns_are_limited() {
        assert!(matches!(Pattern::new("("), Err(Invalid::Syntax)));
        let long = "a".repeat(MAX_PATTERN + 1);
        assert!(matches!(Pattern::new(&long), Err(Invalid::TooLarge)));
        assert!(matches!(Pattern::new(r"\w{1000}"), Err(Invalid::TooLarge)));
        assert!(Pattern::new(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z]+)*$").is_ok());
    }
}
