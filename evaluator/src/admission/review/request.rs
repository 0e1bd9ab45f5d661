//! The request of a review, parsed in the same pass as the review.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The fields of `request` that the host needs, and the position of its text.
#[derive(Default)]
pub(super) struct Request<'a> {
    pub(super) uid: Cow<'a, str>,
    pub(super) operation: Cow<'a, str>,
    pub(super) object: Option<&'a RawValue>,
    /// Addresses of the first field's name, within its quotes, and of the byte after the last value. None if the
    /// name has escapes: it is then not borrowed from the document.
    fields: Option<(usize, usize)>,
}

/// Text that is borrowed if it has no escapes.
#[derive(Default, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

struct Fields;

// === impl Request ===

impl<'a> Request<'a> {
    /// The request within the document that it was read from.
    pub(super) fn text(&self, document: &'a str) -> Option<&'a str> {
        let (first, end) = self.fields?;
        let base = document.as_ptr().addr();
        let before = document.get(..first.checked_sub(base)?)?;
        let start = before
            .strip_suffix('"')?
            .trim_ascii_end()
            .strip_suffix('{')?
            .len();
        let after = document.get(end.checked_sub(base)?..)?;
        let rest = after.trim_ascii_start().strip_prefix('}')?;
        document.get(start..document.len() - rest.len())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Request<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Request<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut request = Request::default();
        let mut seen = [false; 3];
        let mut first = None;
        let mut once = |field: usize, name| {
            if std::mem::replace(&mut seen[field], true) {
                return Err(A::Error::duplicate_field(name));
            }
            Ok(())
        };
        while let Some(Text(name)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            let first = *first.get_or_insert_with(|| match name {
                Cow::Borrowed(name) => Some(name.as_ptr().addr()),
                Cow::Owned(_) => None,
            });
            let end = value.get().as_ptr().addr() + value.get().len();
            request.fields = first.map(|first| (first, end));
            match &*name {
                "uid" => {
                    once(0, "uid")?;
                    request.uid = text::<A::Error>(value)?;
                }
                "operation" => {
                    once(1, "operation")?;
                    request.operation = text::<A::Error>(value)?;
                }
                "object" => {
                    once(2, "object")?;
                    request.object = Some(value).filter(|value| value.get() != "null");
                }
                _ => {}
            }
        }
        Ok(request)
    }
}

fn text<E: serde::de::Error>(value: &RawValue) -> Result<Cow<'_, str>, E> {
    let text: Text<'_> = serde_json::from_str(value.get()).map_err(E::custom)?;
    Ok(text.0)
}
