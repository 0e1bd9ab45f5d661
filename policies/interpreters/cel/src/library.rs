//! The functions that expressions can call: the standard ones, and the libraries that Kubernetes adds.

mod format;
mod ip;
mod lists;
mod pattern;
mod quantity;
mod semver;
mod sets;
mod url;

use cel::{DeclarationError, Env, ExecutionError, extensions};

/// The functions that exist, with the namespace of those that have one.
pub(crate) const FUNCTIONS: [&str; 115] = [
    // The standard functions.
    "bool",
    "bytes",
    "contains",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "int",
    "matches",
    "size",
    "startsWith",
    "string",
    "timestamp",
    "type",
    "uint",
    // Optional values.
    "hasValue",
    "optFlatMap",
    "optMap",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "or",
    "orValue",
    "value",
    // Strings.
    "charAt",
    "format",
    "indexOf",
    "join",
    "lastIndexOf",
    "lowerAscii",
    "replace",
    "reverse",
    "split",
    "strings.quote",
    "substring",
    "trim",
    "upperAscii",
    // Lists.
    "distinct",
    "flatten",
    "isSorted",
    "lists.range",
    "max",
    "min",
    "slice",
    "sort",
    "sum",
    // Regular expressions.
    "find",
    "findAll",
    // Sets.
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    // Quantities.
    "add",
    "asApproximateFloat",
    "asInteger",
    "compareTo",
    "isGreaterThan",
    "isInteger",
    "isLessThan",
    "isQuantity",
    "quantity",
    "sign",
    "sub",
    // Addresses.
    "cidr",
    "containsCIDR",
    "containsIP",
    "family",
    "ip",
    "ip.isCanonical",
    "isCIDR",
    "isGlobalUnicast",
    "isIP",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isUnspecified",
    "masked",
    "prefixLength",
    // URLs.
    "getEscapedPath",
    "getHost",
    "getHostname",
    "getPort",
    "getQuery",
    "getScheme",
    "isURL",
    "url",
    // Formats.
    "format.byte",
    "format.date",
    "format.datetime",
    "format.dns1035Label",
    "format.dns1035LabelPrefix",
    "format.dns1123Label",
    "format.dns1123LabelPrefix",
    "format.dns1123Subdomain",
    "format.dns1123SubdomainPrefix",
    "format.labelValue",
    "format.named",
    "format.qualifiedName",
    "format.uri",
    "format.uuid",
    "validate",
    // Versions.
    "isSemver",
    "major",
    "minor",
    "patch",
    "semver",
];

/// Names before a dot that are no variables.
pub(crate) const NAMESPACES: [&str; 7] = [
    "format",
    "ip",
    "jsonpatch",
    "lists",
    "optional",
    "sets",
    "strings",
];

/// Functions of Kubernetes that do not exist here, with their library.
pub(crate) const REFUSED: [(&str, &str); 18] = [
    ("authorizer", "authorizer"),
    ("path", "authorizer"),
    ("group", "authorizer"),
    ("resource", "authorizer"),
    ("subresource", "authorizer"),
    ("namespace", "authorizer"),
    ("name", "authorizer"),
    ("check", "authorizer"),
    ("allowed", "authorizer"),
    ("reason", "authorizer"),
    ("errored", "authorizer"),
    ("error", "authorizer"),
    ("serviceAccount", "authorizer"),
    ("transformList", "two-variable comprehensions"),
    ("transformMap", "two-variable comprehensions"),
    ("transformMapEntry", "two-variable comprehensions"),
    ("existsOne", "two-variable comprehensions"),
    ("jsonpatch.escapeKey", "JSON patch"),
];

/// The environment of all expressions.
pub(crate) fn env() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    env.add_extension(lists::extension)?;
    env.add_extension(pattern::extension)?;
    env.add_extension(sets::extension)?;
    env.add_extension(quantity::extension)?;
    env.add_extension(ip::extension)?;
    env.add_extension(url::extension)?;
    env.add_extension(format::extension)?;
    env.add_extension(semver::extension)?;
    Ok(env)
}

fn failed(function: &str, why: impl ToString) -> ExecutionError {
    ExecutionError::function_error(function, why.to_string())
}
