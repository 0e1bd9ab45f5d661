//! JSON as CEL values. Whole numbers are `int`, as in Kubernetes.

use std::{collections::HashMap, fmt};

use cel::common::{
    types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
    value::Val,
};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

type Boxed<'v> = Box<dyn Val + 'v>;

/// A value; null if it is absent.
pub(crate) fn value<'v>(raw: Option<&'v RawValue>) -> Result<Boxed<'v>, String> {
    match raw {
        Some(raw) => read(raw, Any),
        None => Ok(Box::new(CelNull)),
    }
}

/// A request without its objects, which are variables of their own.
pub(crate) fn request(raw: &RawValue) -> Result<Boxed<'_>, String> {
    read(raw, WithoutObjects)
}

fn read<'v, S>(raw: &'v RawValue, seed: S) -> Result<Boxed<'v>, String>
where
    S: DeserializeSeed<'v, Value = Boxed<'v>>,
{
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    seed.deserialize(&mut deserializer)
        .map_err(|error| error.to_string())
}

#[derive(Clone, Copy)]
struct Any;

struct WithoutObjects;

impl<'v> DeserializeSeed<'v> for Any {
    type Value = Boxed<'v>;

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<Boxed<'v>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'v> Visitor<'v> for Any {
    type Value = Boxed<'v>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelInt::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Boxed<'v>, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => Box::new(CelInt::from(value)),
            Err(_) => Box::new(CelUInt::from(value)),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_borrowed_str<E>(self, value: &'v str) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelString::from(value)))
    }

    fn visit_seq<A: SeqAccess<'v>>(self, mut seq: A) -> Result<Boxed<'v>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element_seed(Any)? {
            elements.push(element);
        }
        Ok(Box::new(CelList::from(elements)))
    }

    fn visit_map<A: MapAccess<'v>>(self, mut map: A) -> Result<Boxed<'v>, A::Error> {
        let mut entries = HashMap::new();
        while let Some(Key(key)) = map.next_key()? {
            entries.insert(key, map.next_value_seed(Any)?);
        }
        Ok(Box::new(CelMap::from(entries)))
    }
}

impl<'v> DeserializeSeed<'v> for WithoutObjects {
    type Value = Boxed<'v>;

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<Boxed<'v>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'v> Visitor<'v> for WithoutObjects {
    type Value = Boxed<'v>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an admission request")
    }

    fn visit_map<A: MapAccess<'v>>(self, mut map: A) -> Result<Boxed<'v>, A::Error> {
        let mut entries = HashMap::new();
        while let Some(Key(key)) = map.next_key()? {
            let object = matches!(&key, CelMapKey::String(name) if matches!(name.inner(), "object" | "oldObject"));
            if object {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.insert(key, map.next_value_seed(Any)?);
            }
        }
        Ok(Box::new(CelMap::from(entries)))
    }
}

/// Borrowed from the text if it has no escapes.
struct Key<'v>(CelMapKey<'v>);

impl<'v> Deserialize<'v> for Key<'v> {
    fn deserialize<D: Deserializer<'v>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'v> Visitor<'v> for KeyVisitor {
    type Value = Key<'v>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, value: &str) -> Result<Key<'v>, E> {
        Ok(Key(value.to_owned().into()))
    }

    fn visit_borrowed_str<E>(self, value: &'v str) -> Result<Key<'v>, E> {
        Ok(Key(value.into()))
    }
}
