/** Version of the pin in requirements.txt, which a test holds it against. */
export const HERMES_VERSION = '0.19.0';
