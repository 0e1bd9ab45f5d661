//! URLs, split as the API server does it. Crates for URLs follow the standard of browsers, which repairs what an API
//! server refuses, and bring tables of Unicode that are as large as the interpreter.

use std::{any::Any, collections::HashMap};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelList, CelMap, CelMapKey, CelString, Type},
        value::{StaticVal, Val},
    },
};

use super::failed;

mod parse;

use parse::{Parsed, unescape};

static TYPE: Type = Type::new_unspecified_type("kubernetes.URL");

#[derive(Clone, Debug)]
struct Url(Parsed);

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    cel::add_overload!(env, fn url: (CelString) -> Result<Url>)?;
    cel::add_overload!(env, fn is_url: (CelString) -> CelBool, name = "isURL")?;
    cel::add_member_overload!(env, fn get_scheme: (Url) -> CelString)?;
    cel::add_member_overload!(env, fn get_host: (Url) -> CelString)?;
    cel::add_member_overload!(env, fn get_hostname: (Url) -> CelString)?;
    cel::add_member_overload!(env, fn get_port: (Url) -> CelString)?;
    cel::add_member_overload!(env, fn get_escaped_path: (Url) -> CelString)?;
    cel::add_member_overload!(env, fn get_query: (Url) -> CelMap)
}

impl Val for Url {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other
            .downcast_ref::<Self>()
            .is_some_and(|other| other.0 == self.0)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Url {}

/// Whether a string is an absolute URL, or an absolute path.
pub(super) fn is_request_uri(text: &str) -> bool {
    Parsed::request(text).is_ok()
}

fn url(text: &CelString<'_>) -> Result<Url, ExecutionError> {
    let text = text.inner();
    // The first reading takes absolute URLs only, the second one finds the fragment.
    let parsed = Parsed::request(text).and_then(|_| Parsed::reference(text));
    parsed.map(Url).map_err(|why| failed("url", why))
}

fn is_url(text: &CelString<'_>) -> CelBool {
    is_request_uri(text.inner()).into()
}

fn get_scheme(this: &Url) -> CelString<'static> {
    this.0.scheme.clone().into()
}

fn get_host(this: &Url) -> CelString<'static> {
    this.0.host.clone().into()
}

fn get_hostname(this: &Url) -> CelString<'static> {
    let (name, _) = this.0.name_and_port();
    name.to_owned().into()
}

fn get_port(this: &Url) -> CelString<'static> {
    let (_, port) = this.0.name_and_port();
    port.to_owned().into()
}

fn get_escaped_path(this: &Url) -> CelString<'static> {
    this.0.path.clone().into()
}

/// Pairs that can't be decoded are left out.
fn get_query(this: &Url) -> CelMap<'static> {
    let mut all: HashMap<String, Vec<String>> = HashMap::new();
    for pair in this.0.query.split('&') {
        if pair.is_empty() || pair.contains(';') {
            continue;
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| unescape(&text.replace('+', " ")).ok();
        if let (Some(key), Some(value)) = (decode(key), decode(value)) {
            all.entry(key).or_default().push(value);
        }
    }
    let entries: HashMap<CelMapKey<'static>, Box<dyn Val>> = all
        .into_iter()
        .map(|(key, values)| {
            let values: Vec<Box<dyn Val>> = values
                .into_iter()
                .map(|value| Box::new(CelString::from(value)) as Box<dyn Val>)
                .collect();
            (
                CelMapKey::from(key),
                Box::new(CelList::from(values)) as Box<dyn Val>,
            )
        })
        .collect();
    CelMap::from(entries)
}
