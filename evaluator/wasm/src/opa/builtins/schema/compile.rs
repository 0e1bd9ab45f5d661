//! From a document to a schema.

use std::collections::{BTreeMap, HashMap};

use regorus::Value;

use super::{
    Error,
    fields::{Fields, array, compiled, get, number, object, range, text, texts, types, wrong},
};
use crate::opa::builtins::pattern::Pattern;

/// A schema and all that it is made of.
pub(super) struct Schema {
    pub(super) parts: Vec<Part>,
}

/// The place of a part.
pub(super) type Index = usize;

/// What one object of a schema asks for.
#[derive(Default)]
pub(super) struct Part {
    /// A schema that is just true or false.
    pub(super) verdict: Option<bool>,
    /// Another part stands for this one.
    pub(super) same_as: Option<Index>,
    pub(super) types: Vec<&'static str>,
    pub(super) properties: BTreeMap<String, Index>,
    pub(super) additional_properties: Rest,
    pub(super) pattern_properties: Vec<(Pattern, Index)>,
    pub(super) property_names: Option<Index>,
    pub(super) dependencies: Vec<(String, Dependency)>,
    pub(super) items: Items,
    pub(super) additional_items: Rest,
    pub(super) multiple_of: Option<Value>,
    pub(super) minimum: Option<Value>,
    pub(super) exclusive_minimum: Option<Value>,
    pub(super) maximum: Option<Value>,
    pub(super) exclusive_maximum: Option<Value>,
    pub(super) length: Range,
    pub(super) item_count: Range,
    pub(super) property_count: Range,
    pub(super) pattern: Option<Pattern>,
    pub(super) format: Option<String>,
    pub(super) required: Vec<String>,
    pub(super) unique_items: bool,
    pub(super) contains: Option<Index>,
    pub(super) constant: Option<Value>,
    pub(super) one_of_values: Vec<Value>,
    pub(super) one_of: Vec<Index>,
    pub(super) any_of: Vec<Index>,
    pub(super) all_of: Vec<Index>,
    pub(super) not: Option<Index>,
    pub(super) condition: Option<Index>,
    pub(super) then: Option<Index>,
    pub(super) otherwise: Option<Index>,
}

/// What is neither named nor matched by a pattern.
#[derive(Default)]
pub(super) enum Rest {
    #[default]
    Anything,
    Nothing,
    Like(Index),
}

#[derive(Default)]
pub(super) enum Items {
    #[default]
    Any,
    All(Index),
    Each(Vec<Index>),
}

pub(super) enum Dependency {
    Names(Vec<String>),
    Like(Index),
}

/// Bounds of a count, both included.
#[derive(Default)]
pub(super) struct Range {
    pub(super) least: Option<usize>,
    pub(super) most: Option<usize>,
}

/// Compiles one document.
struct Compiler<'v> {
    root: &'v Value,
    parts: Vec<Part>,
    /// Parts that were named from elsewhere, by their address.
    named: HashMap<String, Index>,
    /// Schemas with a name of their own.
    ids: HashMap<String, &'v Value>,
    draft: u32,
}

/// More than any schema that people write.
const MAX_PARTS: usize = 20_000;

/// Accepts the keywords of all drafts.
const HYBRID: u32 = u32::MAX;

// === impl Schema ===

impl Schema {
    /// The first part is the whole.
    pub(super) fn compile(root: &Value) -> Result<Self, Error> {
        let draft = draft(root)?;
        let mut ids = HashMap::new();
        collect_ids(root, &mut ids);
        let mut compiler = Compiler {
            root,
            parts: Vec::new(),
            named: HashMap::new(),
            ids,
            draft,
        };
        compiler.named.insert("#".to_owned(), 0);
        compiler.part(root)?;
        Ok(Self {
            parts: compiler.parts,
        })
    }
}

// === impl Compiler ===

impl<'v> Compiler<'v> {
    /// Takes a place first, so that a part may name itself.
    fn part(&mut self, value: &'v Value) -> Result<Index, Error> {
        let index = self.parts.len();
        if index >= MAX_PARTS {
            return Err(Error::TooMuch);
        }
        self.parts.push(Part::default());
        self.parts[index] = self.read(value)?;
        Ok(index)
    }

    fn read(&mut self, value: &'v Value) -> Result<Part, Error> {
        let fields = match value {
            Value::Bool(verdict) if self.draft >= 6 => {
                return Ok(Part {
                    verdict: Some(*verdict),
                    ..Part::default()
                });
            }
            Value::Object(fields) => fields,
            _ => return Err(wrong("a schema must be an object")),
        };
        for name in ["title", "description", "$id"] {
            text(fields, name)?;
        }
        let mut part = Part::default();
        self.definitions(fields)?;
        if let Some(reference) = text(fields, "$ref")? {
            part.same_as = Some(self.reference(reference)?);
            return Ok(part);
        }
        part.types = types(fields)?;
        self.read_objects(fields, &mut part)?;
        self.read_arrays(fields, &mut part)?;
        self.read_numbers(fields, &mut part)?;
        self.read_texts(fields, &mut part)?;
        self.read_values(fields, &mut part)?;
        self.read_combined(fields, &mut part)?;
        Ok(part)
    }

    fn definitions(&mut self, fields: &'v Fields) -> Result<(), Error> {
        let Some(definitions) = get(fields, "definitions") else {
            return Ok(());
        };
        let Value::Object(definitions) = definitions else {
            return Err(wrong("definitions must be an object of schemas"));
        };
        for (_, definition) in definitions.iter() {
            self.part(definition)?;
        }
        Ok(())
    }

    /// The part that a reference names, here or under a name of its own; nothing is fetched.
    fn reference(&mut self, reference: &str) -> Result<Index, Error> {
        if let Some(index) = self.named.get(reference) {
            return Ok(*index);
        }
        let (document, pointer) = reference.split_once('#').unwrap_or((reference, ""));
        let root = match document {
            "" => self.root,
            name => *self.ids.get(name).ok_or(Error::TooMuch)?,
        };
        let missing = || wrong(&format!("there is nothing at {reference}"));
        let anchor = format!("#{pointer}");
        let target = match self.ids.get(anchor.as_str()) {
            Some(target) if document.is_empty() && !pointer.is_empty() => *target,
            _ => follow(root, pointer).ok_or_else(missing)?,
        };
        // Named before it is read: it may name itself.
        let index = self.parts.len();
        self.named.insert(reference.to_owned(), index);
        self.part(target)
    }

    fn many(&mut self, fields: &'v Fields, name: &str) -> Result<Vec<Index>, Error> {
        let schemas = array(fields, name)?;
        schemas
            .into_iter()
            .map(|schema| self.part(schema))
            .collect()
    }

    fn one(&mut self, fields: &'v Fields, name: &str) -> Result<Option<Index>, Error> {
        get(fields, name)
            .map(|schema| self.part(schema))
            .transpose()
    }

    fn rest(&mut self, fields: &'v Fields, name: &str) -> Result<Rest, Error> {
        Ok(match get(fields, name) {
            None | Some(Value::Bool(true)) => Rest::Anything,
            Some(Value::Bool(false)) => Rest::Nothing,
            Some(schema @ Value::Object(_)) => Rest::Like(self.part(schema)?),
            Some(_) => return Err(wrong(&format!("{name} must be a boolean or a schema"))),
        })
    }

    fn read_objects(&mut self, fields: &'v Fields, part: &mut Part) -> Result<(), Error> {
        for (name, schema) in object(fields, "properties")? {
            let index = self.part(schema)?;
            part.properties.insert(name, index);
        }
        for (pattern, schema) in object(fields, "patternProperties")? {
            let regex = compiled(&pattern, &format!("{pattern:?} is no pattern"))?;
            part.pattern_properties.push((regex, self.part(schema)?));
        }
        for (name, dependency) in object(fields, "dependencies")? {
            let dependency = match dependency {
                Value::Array(_) => Dependency::Names(texts(dependency, "dependencies")?),
                schema => Dependency::Like(self.part(schema)?),
            };
            part.dependencies.push((name, dependency));
        }
        part.additional_properties = self.rest(fields, "additionalProperties")?;
        if self.draft >= 6 {
            part.property_names = self.one(fields, "propertyNames")?;
        }
        part.property_count = range(fields, "minProperties", "maxProperties")?;
        if let Some(required) = get(fields, "required") {
            part.required = texts(required, "required")?;
            let distinct: std::collections::HashSet<_> = part.required.iter().collect();
            if distinct.len() < part.required.len() {
                return Err(wrong("required names a property twice"));
            }
        }
        Ok(())
    }

    fn read_arrays(&mut self, fields: &'v Fields, part: &mut Part) -> Result<(), Error> {
        part.items = match get(fields, "items") {
            None => Items::Any,
            Some(Value::Array(schemas)) => {
                let each = schemas.iter().map(|schema| self.part(schema));
                Items::Each(each.collect::<Result<_, _>>()?)
            }
            Some(schema) => Items::All(self.part(schema)?),
        };
        part.additional_items = self.rest(fields, "additionalItems")?;
        part.item_count = range(fields, "minItems", "maxItems")?;
        part.unique_items = match get(fields, "uniqueItems") {
            None => false,
            Some(Value::Bool(unique)) => *unique,
            Some(_) => return Err(wrong("uniqueItems must be a boolean")),
        };
        if self.draft >= 6 {
            part.contains = self.one(fields, "contains")?;
        }
        Ok(())
    }

    fn read_numbers(&mut self, fields: &Fields, part: &mut Part) -> Result<(), Error> {
        part.multiple_of = number(fields, "multipleOf")?;
        if part
            .multiple_of
            .as_ref()
            .is_some_and(|of| *of <= Value::from(0_i64))
        {
            return Err(wrong("multipleOf must be greater than 0"));
        }
        (part.minimum, part.exclusive_minimum) =
            self.bounds(fields, "minimum", "exclusiveMinimum")?;
        (part.maximum, part.exclusive_maximum) =
            self.bounds(fields, "maximum", "exclusiveMaximum")?;
        Ok(())
    }

    /// An exclusive bound is a number since draft 6; before, it is a flag of the inclusive one.
    fn bounds(
        &self,
        fields: &Fields,
        name: &str,
        exclusive: &str,
    ) -> Result<(Option<Value>, Option<Value>), Error> {
        let bound = number(fields, name)?;
        match get(fields, exclusive) {
            None => Ok((bound, None)),
            Some(Value::Bool(is)) if self.draft == 4 || self.draft == HYBRID => match (bound, is) {
                (None, _) => Err(wrong(&format!("{exclusive} needs {name}"))),
                (bound, true) => Ok((None, bound)),
                (bound, false) => Ok((bound, None)),
            },
            Some(_) if self.draft == 4 => Err(wrong(&format!("{exclusive} must be a boolean"))),
            Some(_) => Ok((bound, number(fields, exclusive)?)),
        }
    }

    fn read_texts(&mut self, fields: &Fields, part: &mut Part) -> Result<(), Error> {
        part.length = range(fields, "minLength", "maxLength")?;
        if let Some(pattern) = text(fields, "pattern")? {
            part.pattern = Some(compiled(pattern, "pattern must be a pattern")?);
        }
        part.format = text(fields, "format")?.map(str::to_owned);
        Ok(())
    }

    fn read_values(&mut self, fields: &Fields, part: &mut Part) -> Result<(), Error> {
        if self.draft >= 6 {
            part.constant = get(fields, "const").cloned();
        }
        for value in array(fields, "enum")? {
            if part.one_of_values.contains(value) {
                return Err(wrong("enum has a value twice"));
            }
            part.one_of_values.push(value.clone());
        }
        Ok(())
    }

    fn read_combined(&mut self, fields: &'v Fields, part: &mut Part) -> Result<(), Error> {
        part.one_of = self.many(fields, "oneOf")?;
        part.any_of = self.many(fields, "anyOf")?;
        part.all_of = self.many(fields, "allOf")?;
        part.not = self.one(fields, "not")?;
        if self.draft >= 7 {
            part.condition = self.one(fields, "if")?;
            part.then = self.one(fields, "then")?;
            part.otherwise = self.one(fields, "else")?;
        }
        Ok(())
    }
}

fn draft(root: &Value) -> Result<u32, Error> {
    let Value::Object(fields) = root else {
        return match root {
            Value::Bool(_) => Ok(HYBRID),
            _ => Err(wrong("a schema must be an object")),
        };
    };
    let name = text(fields, "$schema")?
        .unwrap_or_default()
        .trim_end_matches('#');
    let known = [("04", 4), ("06", 6), ("07", 7)];
    let draft = known
        .iter()
        .find(|(number, _)| name == format!("http://json-schema.org/draft-{number}/schema"));
    Ok(draft.map_or(HYBRID, |(_, draft)| *draft))
}

/// Schemas that have a name, wherever they are.
fn collect_ids<'v>(value: &'v Value, ids: &mut HashMap<String, &'v Value>) {
    match value {
        Value::Object(fields) => {
            for name in ["$id", "id"] {
                if let Some(Value::String(id)) = get(fields, name) {
                    ids.insert(id.trim_end_matches('#').to_owned(), value);
                }
            }
            fields.iter().for_each(|(_, inner)| collect_ids(inner, ids));
        }
        Value::Array(items) => items.iter().for_each(|inner| collect_ids(inner, ids)),
        _ => {}
    }
}

/// A JSON pointer, with the escapes of a URI.
fn follow<'v>(root: &'v Value, pointer: &str) -> Option<&'v Value> {
    let pointer = crate::opa::builtins::uri::fragment(pointer)?;
    let mut at = root;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        at = match at {
            Value::Object(fields) => get(fields, &step)?,
            Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    (pointer.is_empty() || pointer.starts_with('/')).then_some(at)
}
