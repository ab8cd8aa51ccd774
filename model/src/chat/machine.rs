//! minijinja's machine with Python's operators.
//!
//! The machine has operators of its own: they order what Python does not compare, write
//! values as text in another way and join lists without a charge. Each of their
//! instructions is replaced by a call of one of ours, which is in the environment as a
//! filter under a name that no template can write.

use std::collections::BTreeMap;

use minijinja::machinery::{self, Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, Template, Value};

use super::attributes;
use super::values::check_key;

/// Renders a template of an environment that has all of [`OPERATORS`].
///
/// [`OPERATORS`]: super::operators::OPERATORS
pub(super) fn render<'env>(
    environment: &'env Environment<'env>,
    template: &Template<'env, 'env>,
    variables: Value,
) -> Result<String, Error> {
    let compiled = machinery::get_compiled_template(template);
    let instructions = with_operators(&compiled.instructions);
    let mut text = String::new();
    let mut output = machinery::make_string_output(&mut text);
    let blocks = BTreeMap::new();
    let escape = AutoEscape::None;
    machinery::eval(
        environment,
        &instructions,
        variables,
        &blocks,
        &mut output,
        escape,
    )?;
    Ok(text)
}

fn with_operators<'env>(old: &Instructions<'env>) -> Instructions<'env> {
    // Where each of the old instructions begins.
    let mut starts = Vec::new();
    let mut end = 0;
    while let Some(instruction) = old.get(starts.len() as u32) {
        starts.push(end);
        end += replacement(instruction).len() as u32;
    }
    starts.push(end);
    let mut new = Instructions::new(old.name(), old.source());
    for index in 0..starts.len() as u32 - 1 {
        let Some(instruction) = old.get(index) else {
            break;
        };
        for mut instruction in replacement(instruction) {
            use Instruction::{
                BuildMacro, Iterate, Jump, JumpIfFalse, JumpIfFalseOrPop, JumpIfTrueOrPop,
            };
            if let Iterate(target)
            | Jump(target)
            | JumpIfFalse(target)
            | JumpIfFalseOrPop(target)
            | JumpIfTrueOrPop(target)
            | BuildMacro(_, target, _) = &mut instruction
                && let Some(start) = starts.get(*target as usize)
            {
                *target = *start;
            }
            match (old.get_span(index), old.get_line(index)) {
                (Some(span), _) => new.add_with_span(instruction, span),
                (None, Some(line)) => new.add_with_line(instruction, line as u16),
                (None, None) => new.add(instruction),
            };
        }
    }
    new
}

/// What stands for an instruction.
fn replacement<'env>(instruction: &Instruction<'env>) -> Vec<Instruction<'env>> {
    /// Looked up by name each time.
    const NO_PLACE: u8 = u8::MAX;
    let call = |name, operands| Instruction::ApplyFilter(name, Some(operands), NO_PLACE);
    let (name, operands) = match instruction {
        Instruction::Add => ("+", 2),
        Instruction::Sub => ("-", 2),
        Instruction::Mul => ("*", 2),
        Instruction::Div => ("/", 2),
        Instruction::IntDiv => ("//", 2),
        Instruction::Rem => ("%", 2),
        Instruction::Pow => ("**", 2),
        Instruction::StringConcat => ("~", 2),
        Instruction::Eq => ("==", 2),
        Instruction::Ne => ("!=", 2),
        Instruction::Lt => ("<", 2),
        Instruction::Lte => ("<=", 2),
        Instruction::Gt => (">", 2),
        Instruction::Gte => (">=", 2),
        Instruction::In => ("[in]", 2),
        Instruction::Neg => ("[-]", 1),
        Instruction::GetItem => ("[]", 2),
        Instruction::Slice => ("[:]", 4),
        Instruction::CompareAndPreserve(operator) => {
            // It leaves its right operand for the next comparison of the chain.
            let name = match format!("{operator:?}").as_str() {
                "Eq" => "[==",
                "Ne" => "[!=",
                "Lt" => "[<",
                "Lte" => "[<=",
                "Gt" => "[>",
                "Gte" => "[>=",
                "In" => "[in",
                _ => "[notin",
            };
            return vec![call(name, 2), Instruction::UnpackList(2)];
        }
        Instruction::GetAttr(name) if attributes::is_name(name) => {
            return vec![Instruction::LoadConst((*name).into()), call("[.]", 2)];
        }
        Instruction::BuildMap(_) => return vec![instruction.clone(), call("[key]", 1)],
        Instruction::PushLoop(_) => return vec![call("[for]", 1), instruction.clone()],
        Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => {
            // What minijinja has computed while it compiled: lists joined.
            return vec![instruction.clone(), call("[list]", 1)];
        }
        Instruction::LoadConst(value) => match with_wrong_key(value) {
            Some(dict) => return vec![Instruction::LoadConst(dict), call("[key]", 1)],
            None => return vec![instruction.clone()],
        },
        other => return vec![other.clone()],
    };
    vec![call(name, operands)]
}

/// The mapping in a constant that has a key which Python refuses.
fn with_wrong_key(value: &Value) -> Option<Value> {
    let mut items = match value.kind() {
        ValueKind::Seq | ValueKind::Map => value.try_iter().ok()?,
        _ => return None,
    };
    if value.kind() == ValueKind::Seq {
        return items.find_map(|item| with_wrong_key(&item));
    }
    items.find_map(|key| match check_key(&key) {
        Ok(()) => with_wrong_key(&value.get_item(&key).ok()?),
        Err(_) => Some(value.clone()),
    })
}
