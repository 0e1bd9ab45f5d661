//! Builtins taken from `regorus`.

use std::sync::LazyLock;

use regorus::{
    Source, Value,
    unstable::{BUILTINS, Expr, Ref, Span},
};

/// What `regorus` calls a builtin: place of the call, arguments as written, their values, strictness.
pub(super) type Function = fn(&Span, &[Ref<Expr>], &[Value], bool) -> anyhow::Result<Value>;

/// Those whose time and memory are in proportion to their arguments. Others are called by [`delegate`], behind a bound.
const NAMES: [&str; 24] = [
    "array.reverse",
    "base64.is_valid",
    "base64url.encode_no_pad",
    "hex.decode",
    "hex.encode",
    "json.is_valid",
    "net.cidr_is_valid",
    "object.keys",
    "semver.compare",
    "semver.is_valid",
    "strings.count",
    "strings.reverse",
    "time.clock",
    "time.date",
    "time.diff",
    "time.format",
    "time.parse_duration_ns",
    "time.parse_ns",
    "time.parse_rfc3339_ns",
    "time.weekday",
    "urlquery.decode",
    "urlquery.decode_object",
    "urlquery.encode",
    "urlquery.encode_object",
];

/// Stands for the source of a call, which a compiled module no longer has.
struct Place {
    span: Span,
    params: [Ref<Expr>; 4],
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let source = Source::from_contents("builtin".to_owned(), "x".to_owned())
        .expect("one letter must be a source");
    let span = Span {
        source,
        line: 1,
        col: 1,
        start: 0,
        end: 1,
    };
    let param = || {
        Ref::new(Expr::Null {
            span: span.clone(),
            value: Value::Null,
            eidx: 0,
        })
    };
    Place {
        params: [param(), param(), param(), param()],
        span: span.clone(),
    }
});

pub(super) fn find(name: &str) -> Option<Function> {
    NAMES
        .contains(&name)
        .then(|| BUILTINS.get(name))
        .flatten()
        .map(|(function, _)| *function)
}

/// An error is undefined, as in OPA without `strict-builtin-errors`.
pub(super) fn call(function: Function, args: &[Value]) -> Option<Value> {
    let place = &*PLACE;
    function(&place.span, place.params.get(..args.len())?, args, false).ok()
}

/// Calls a builtin by its name, once its arguments were found harmless.
pub(super) fn delegate(name: &str, args: &[Value]) -> Option<Value> {
    BUILTINS
        .get(name)
        .and_then(|(function, _)| call(*function, args))
}
