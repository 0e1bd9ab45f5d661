//! Builtins that OPA leaves to the host of a module.
//!
//! Everything here ends by the deadline of the evaluation: loops look at the clock, and work that can't be interrupted
//! takes time in proportion to its arguments and is begun only if there is enough of it ([`deadline`]). Memory is
//! bounded by limits on results, and taken from what evaluations share. That is why builtins of `regorus` are listed one by one.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use regorus::Value;

use super::{
    deadline::{self, Interrupted, Limit},
    value,
};
use crate::{budget::MemoryBudget, sandbox::Stop};

mod bounded;
mod crypto;
mod date;
mod encoding;
mod globs;
mod graph;
mod net;
mod pattern;
mod plain;
mod rego;
mod schema;
mod sprintf;
mod template;
mod token;
mod uri;
mod x509;

/// The builtins of one module, by number.
#[derive(Default)]
pub(super) struct Table(Vec<Option<Builtin>>);

/// One call.
pub(super) struct Context {
    /// The same for all calls of one evaluation.
    pub(super) now: Option<SystemTime>,
    pub(super) limit: Limit,
    /// Length of the arguments as text.
    pub(super) argument_bytes: usize,
    /// What the arguments may take in memory.
    pub(super) argument_memory: u64,
    pub(super) memory: MemoryBudget,
}

/// A builtin that a module asks for.
pub(super) struct Builtin {
    name: String,
    function: Function,
}

/// The result of a call: no value means undefined.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) value: Option<Value>,
    pub(super) log: Option<String>,
}

/// A builtin written here. `None` is undefined: wrong arguments are no error in Rego.
type Own = fn(&[Value]) -> Option<Value>;

/// A builtin with a bound. Beyond it the evaluation ends: undefined could allow what the policy would deny.
type Bounded = fn(&[Value]) -> Result<Option<Value>, TooMuch>;

/// A builtin that reads the clock of the evaluation.
type Timed = fn(&Context, &[Value]) -> Option<Value>;

/// A call is beyond its bound.
#[derive(Debug)]
struct TooMuch;

enum Function {
    Own(Own),
    Bounded(Bounded),
    Timed(Timed),
    Regorus(rego::Function),
    Now,
    Print,
    Refused(&'static str),
    Unknown,
}

/// More than all builtins of Rego.
const MOST: i32 = 1_000;

/// Work of a builtin that reads its arguments once, per byte: hashing, parsing and encoding take less.
const UNITS_PER_BYTE: usize = 5;

const NO_NETWORK: &str = "policies have no network";

// === impl Table ===

impl Table {
    /// Fails with a number that no list of builtins has.
    pub(super) fn new(names: BTreeMap<String, i32>) -> Result<Self, i32> {
        let mut table = Vec::new();
        for (name, number) in names {
            let index = usize::try_from(number)
                .ok()
                .filter(|_| number < MOST)
                .ok_or(number)?;
            if table.len() <= index {
                table.resize_with(index + 1, || None);
            }
            table[index] = Some(Builtin {
                function: Function::named(&name),
                name,
            });
        }
        Ok(Self(table))
    }

    pub(super) fn get(&self, number: i32) -> Option<&Builtin> {
        self.0.get(usize::try_from(number).ok()?)?.as_ref()
    }
}

// === impl Builtin ===

impl Builtin {
    pub(super) fn call(&self, context: &Context, args: &[Value]) -> Result<Reply, Stop> {
        let name = &self.name;
        let value = match &self.function {
            Function::Own(function) => self.guarded(context, || function(args))?,
            Function::Timed(function) => self.guarded(context, || function(context, args))?,
            Function::Bounded(function) => {
                self.guarded(context, || function(args))?
                    .map_err(|TooMuch| {
                        Stop::Abort(format!(
                            "the builtin {name} was asked for more than it does"
                        ))
                    })?
            }
            Function::Regorus(function) => self.guarded(context, || rego::call(*function, args))?,
            Function::Now => context.now_ns(),
            Function::Print => return Ok(print(args)),
            Function::Refused(why) => {
                return Err(Stop::Abort(format!(
                    "the builtin {name} is not available: {why}"
                )));
            }
            Function::Unknown => {
                return Err(Stop::Abort(format!("the builtin {name} is not known here")));
            }
        };
        Ok(Reply {
            value: value.filter(|value| *value != Value::Undefined),
            log: None,
        })
    }

    /// A fault in a library ends the evaluation, not the process.
    fn guarded<T>(&self, context: &Context, call: impl FnOnce() -> T) -> Result<T, Stop> {
        let limited = || {
            deadline::afford(context.argument_bytes.saturating_mul(UNITS_PER_BYTE));
            // Most results are no larger than the arguments; others reserve the difference.
            deadline::reserve(usize::try_from(context.argument_memory).unwrap_or(usize::MAX));
            call()
        };
        let called = deadline::run_within(context.limit, &context.memory, limited);
        called.map_err(|interrupted| match interrupted {
            Interrupted::Timeout => Stop::Timeout,
            Interrupted::OutOfMemory => Stop::Overloaded,
            Interrupted::Panicked => Stop::Abort(format!("the builtin {} failed", self.name)),
        })
    }
}

// === impl Context ===

impl Context {
    fn now_ns(&self) -> Option<Value> {
        let nanos = self.now?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        i64::try_from(nanos).ok().map(Value::from)
    }
}

// === impl Function ===

impl Function {
    fn named(name: &str) -> Self {
        match name {
            "time.now_ns" => Self::Now,
            "internal.print" => Self::Print,
            _ => Self::refused(name)
                .or_else(|| Self::written_here(name))
                .or_else(|| rego::find(name).map(Self::Regorus))
                .unwrap_or(Self::Unknown),
        }
    }

    /// Those of OPA that are left out, and why.
    fn refused(name: &str) -> Option<Self> {
        Some(Self::Refused(match name {
            "http.send" | "net.lookup_ip_addr" | "providers.aws.sign_req" => NO_NETWORK,
            "rego.parse_module" | "rego.metadata.chain" | "rego.metadata.rule" => {
                "a compiled module has no source"
            }
            "io.jwt.encode_sign" | "io.jwt.encode_sign_raw" => "policies sign nothing",
            "internal.test_case" => "policies are not tested here",
            name if name.starts_with("graphql.") => "GraphQL is not understood here",
            _ => return None,
        }))
    }

    fn written_here(name: &str) -> Option<Self> {
        let own = [
            crypto::find,
            date::find,
            plain::find,
            sprintf::find,
            token::find,
            uri::find,
            x509::find,
        ];
        let bounded = [
            bounded::find,
            encoding::find,
            globs::find,
            graph::find,
            net::find,
            pattern::find,
            schema::find,
            template::find,
        ];
        let timed = [token::find_timed, x509::find_timed];
        let own = own.iter().find_map(|find| find(name)).map(Self::Own);
        own.or_else(|| {
            let found = bounded.iter().find_map(|find| find(name));
            found.map(Self::Bounded)
        })
        .or_else(|| timed.iter().find_map(|find| find(name)).map(Self::Timed))
    }
}

/// The argument is a list of sets, each with the value of one operand, or empty if that is undefined.
fn print(args: &[Value]) -> Reply {
    let mut words = Vec::new();
    if let Some(Value::Array(items)) = args.first() {
        for item in items.iter() {
            words.push(match item {
                Value::Set(set) => set
                    .iter()
                    .next()
                    .map_or("<undefined>".to_owned(), sprintf::text),
                other => sprintf::text(other),
            });
        }
    }
    Reply {
        value: Some(Value::Bool(true)),
        log: Some(words.join(" ")),
    }
}

/// Builtins that read text of the user.
pub(super) const FUZZED: [&str; 22] = [
    "crypto.parse_private_keys",
    "crypto.x509.parse_certificate_request",
    "crypto.x509.parse_certificates",
    "crypto.x509.parse_keypair",
    "graph.reachable_paths",
    "io.jwt.decode",
    "io.jwt.verify_rs256",
    "json.match_schema",
    "json.patch",
    "json.verify_schema",
    "net.cidr_merge",
    "numbers.range_step",
    "regex.globs_match",
    "regex.replace",
    "sprintf",
    "strings.render_template",
    "strings.split_n",
    "time.format",
    "time.parse_ns",
    "units.parse",
    "units.parse_bytes",
    "uri.parse",
];

/// Fuzzing reports calls that take longer.
const FUZZ_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls a builtin with a list as its arguments.
pub(super) fn fuzz(name: &str, args: &Value) {
    if let Value::Array(args) = args {
        let args: Vec<_> = args.iter().cloned().collect();
        let builtin = Builtin {
            name: name.to_owned(),
            function: Function::named(name),
        };
        let context = Context {
            now: None,
            limit: Limit {
                deadline: Instant::now() + FUZZ_TIMEOUT,
                on_slow: None,
            },
            argument_bytes: 0,
            argument_memory: 0,
            memory: MemoryBudget::unlimited(),
        };
        let _ = builtin.call(&context, &args);
    }
}

/// Reads a string argument.
fn string(args: &[Value], index: usize) -> Option<&str> {
    match args.get(index)? {
        Value::String(string) => Some(string),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
