import type { FleetError } from '@hermes-fleet/shared';
import { loadConfig } from '@hermes-fleet/worker/config';
import { expect, test } from 'vitest';

const REDIS = { FLEET_REDIS_URL: 'redis://127.0.0.1' };

test('an unknown FLEET_ variable is refused by name', () => {
  expect(() => loadConfig({ ...REDIS, FLEET_CONCURENCY: '8' })).toThrow(/FLEET_CONCURENCY/);
});

test('variables of other programs are none of our business', () => {
  expect(loadConfig({ ...REDIS, HOME: '/', FLEET_TEST_REQUIRE: 'all', FLEET_GYM_PYTHON: 'x' }).FLEET_CONCURRENCY).toBe(
    256,
  );
});

test.each([
  [{ FLEET_REDIS_URL: 'http://127.0.0.1' }, /redis:\/\/ or rediss:\/\/ URL[\s\S]*FLEET_REDIS_URL/],
  [{ ...REDIS, FLEET_SLOTS: '0' }, /FLEET_SLOTS/],
  [{ ...REDIS, FLEET_SLOTS: 'many' }, /FLEET_SLOTS/],
  [{ ...REDIS, FLEET_ALLOW_EVICTION: 'perhaps' }, /FLEET_ALLOW_EVICTION/],
  [{ ...REDIS, FLEET_RENEW_MS: '9000' }, /more than twice FLEET_RENEW_MS/],
  [{ ...REDIS, FLEET_TAKEOVER_GRACE_MS: '1000' }, /more than FLEET_RENEW_MS/],
  [{ ...REDIS, FLEET_CREDENTIAL_KEY: 'two words' }, /FLEET_CREDENTIAL_KEY must be printable ASCII/],
  [{}, /FLEET_REDIS_URL/],
])('settings %j are refused, naming the variable', (env, message) => {
  expect(() => loadConfig(env)).toThrow(message);
  expect(() => loadConfig(env)).toThrow(expect.objectContaining({ code: 'refused/config' }) as FleetError);
});

test('a refused credential does not appear in the message', () => {
  expect(() => loadConfig({ ...REDIS, FLEET_CREDENTIAL_KEY: 'se cret' })).not.toThrow(/se cret/);
});

test('credentials are known by the name behind FLEET_CREDENTIAL_', () => {
  const { credentials } = loadConfig({ ...REDIS, FLEET_CREDENTIAL_POLICY: 'k-1' });
  expect(credentials.get('POLICY')).toBe('k-1');
});
