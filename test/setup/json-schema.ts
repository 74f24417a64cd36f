import { AjvJsonSchemaValidator } from '@modelcontextprotocol/sdk/validation/ajv';
import type { JsonSchemaValidator } from '@modelcontextprotocol/sdk/validation';

const compiled = new WeakMap<object, JsonSchemaValidator<unknown>>();

function validatorOf(schema: object): JsonSchemaValidator<unknown> {
  // Its validator knows the dialect by itself, and refuses the name of a newer one.
  const { $schema: _dialect, ...plain } = schema as { $schema?: string };
  const validator = compiled.get(schema) ?? new AjvJsonSchemaValidator().getValidator(plain);
  compiled.set(schema, validator);
  return validator;
}

/** What a JSON Schema has against a value; undefined when it fits. */
export function schemaFault(schema: object, value: unknown): string | undefined {
  const result = validatorOf(schema)(value);
  return result.valid ? undefined : result.errorMessage;
}
