/** Calls into the application's own code, whose errors are its own: they must not stop us half-way through a frame. */

/** Call what the application gave, if it gave something; what it throws is reported as an uncaught error. */
export function call<A extends unknown[]>(hook: ((...args: A) => unknown) | undefined, ...args: A): void {
  try {
    hook?.(...args);
  } catch (error) {
    uncaught(error);
  }
}

/** Let the platform report an error that nobody waits for. */
export function uncaught(error: unknown): void {
  setTimeout(() => {
    throw error;
  }, 0);
}
